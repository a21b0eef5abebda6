"""Every writer of the project on a file system that refuses, or that hangs for a while."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_rl
from tests.storage import table
from tests.storage.writers import OUTSIDE, WRITERS

Cells = dict[str, tuple[int, str]]

OURS = {"write_text", "write_bytes", "write_json", "write_last", "append_row", "append_event", "keep_room"}
OURS |= {"written_beside", "write_whole", "save_tensors", "start_child"}
THEIRS = {"save_file", "save_pretrained", "copyfile", "copytree", "mkdir", "makedirs", "rename", "symlink_to", "touch"}
THEIRS |= {"mkstemp", "NamedTemporaryFile", "EventFileWriter", "save"}
EVENTS_ALONE = {"append_event"}
"""Whoever only tells an event passes nothing on: it does not raise."""


@pytest.fixture(scope="module")
def cells() -> dict[str, Cells]:
    if shutil.which("cc") is None:
        pytest.skip("the library that makes calls fail needs a C compiler")
    return table.measure()


@pytest.mark.parametrize("name", WRITERS)
def test_an_error_at_any_call_is_told_leaves_no_half_and_is_over_with_its_cause(
    cells: dict[str, Cells], name: str
) -> None:
    for error, (num_calls, wrong) in cells[name].items():
        assert not wrong, f"{error} {wrong}"
        assert num_calls > 0, f"{error} was met nowhere"
    assert set(cells[name]) == set(table.ERRORS)


def test_every_writer_is_in_the_table() -> None:
    named = [code for writer in WRITERS.values() for code in writer.code]
    assert sorted(named) == sorted(set(named))
    root = Path(slurm_rl.__file__).parent
    found = {name for path in root.rglob("*.py") for name in find_writers(path, root)}
    assert found - {*named, *OUTSIDE} == set(), "tests/storage/writers.py must say what an error there does"
    assert {*named, *OUTSIDE} - found == set(), "these write no more"


def find_writers(path: Path, root: Path) -> Iterator[str]:
    """Functions that make or change files: `module.qualified name`."""
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    for name, calls in _calls(ast.parse(path.read_text(encoding="utf-8")), ()):
        if {kind for call in calls if (kind := _kind(call))} - EVENTS_ALONE:
            yield f"{module}.{name}"


def _calls(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, list[ast.Call]]]:
    own: list[ast.Call] = []
    for child in _within(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(child, (*inside, child.name))
        elif isinstance(child, ast.Call):
            own.append(child)
    if own:
        yield ".".join(inside) or "<module>", own


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """All below `node`, and of a function or class in it nothing but itself."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _within(child)


def _kind(call: ast.Call) -> str | None:
    """How this call writes; None when it does not."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    text = ast.unparse(call)
    if name in ("open", "fdopen"):
        modes = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        modes += [
            word.value.value for word in call.keywords if isinstance(word.value, ast.Constant) and word.arg == "mode"
        ]
        writes = any(len(mode) <= 3 and (set(mode) & set("wax+")) for mode in modes)
        return name if writes or "O_WRONLY" in text or "O_RDWR" in text else None
    if name == "replace":  # of a path; a string's has two arguments, dataclasses' has keywords
        return name if isinstance(function, ast.Attribute) and len(call.args) == 1 and not call.keywords else None
    if name == "save":
        return name if text.startswith(("torch.save(", "np.save(")) else None
    return name if name in OURS | THEIRS else None
