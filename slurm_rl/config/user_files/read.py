"""Check a user's function without importing its file (a login node has no torch), and copy it into the run."""

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path

from slurm_rl.config.user_files.load import copy_path, find_file
from slurm_rl.errors import ConfigError, find_near


@dataclass(frozen=True)
class Form:
    """Signature that a function under a config key must have."""

    key: str
    parameters: tuple[str, ...]
    """Passed by position; the function may use other names."""
    flags: tuple[str, ...] | None = None
    """Keyword-only parameters; the default (True or False) describes the function. None: any object is accepted."""
    takes_all: bool = False
    """`file.py:*`, every function of the file, is accepted too."""


def read_function(spec: str, form: Form) -> dict[str, bool]:
    """Return the flags of `file.py:name`.

    Raises:
        ConfigError: the file does not exist or does not parse, it lacks the function, or the signature differs.
    """
    file, name = _find(spec, form.key), spec.rpartition(":")[2]
    tree = _parse(file, form.key)
    if name == "*" and form.takes_all:
        return {}
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name in defined:
        _check_call(defined[name], form, spec)
        return {} if form.flags is None else _read_flags(defined[name], form, spec)
    names = sorted(defined if form.flags is not None else {found for node in tree.body for found in _bound_by(node)})
    if name not in names:
        place = "as a function of its own" if form.flags is not None else "at its top level"
        raise ConfigError(
            f"{file} must define {name} {place}", seen=", ".join(names) or "nothing", action=f"correct {form.key}"
        )
    return {}


def _find(spec: str, key: str) -> Path:
    try:
        return find_file(spec)
    except RuntimeError:
        raise ConfigError(
            f"{key}: ~name must be a user of this machine", seen=spec, action="write the path out"
        ) from None


def _parse(file: Path, key: str) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except OSError as error:
        near = find_near(file.name, [other.name for other in file.parent.glob("*.py")])
        hint = f"write {key}=<path>.py:<name>; a relative path begins at the working directory"
        raise ConfigError(
            f"{key} must name a file that can be read",
            seen=f"{file} ({error.strerror})",
            action=hint if near is None else f"did you mean {near}?",
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{key} must name a Python file", seen=f"{file}: {error}", action="correct the file"
        ) from None


def _check_call(function: ast.FunctionDef, form: Form, spec: str) -> None:
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    count, fewest = len(form.parameters), len(positional) - len(args.defaults)
    fits = fewest <= count and (args.vararg is not None or count <= len(positional))
    if not fits or None in args.kw_defaults:
        raise ConfigError(
            f"{form.key} is called as {function.name}({', '.join(form.parameters)})",
            seen=_show(function, spec),
            action="use these parameters, and give any others a default",
        )


def _read_flags(function: ast.FunctionDef, form: Form, spec: str) -> dict[str, bool]:
    given = dict(zip((arg.arg for arg in function.args.kwonlyargs), function.args.kw_defaults, strict=True))
    values = {name: node.value if isinstance(node, ast.Constant) else None for name, node in given.items()}
    wrong = [name for name, value in values.items() if name not in (form.flags or ()) or not isinstance(value, bool)]
    if wrong:
        known = ", ".join(form.flags or ()) or "none"
        raise ConfigError(
            f"the keyword-only parameters of a function for {form.key} are its flags, each True or False ({known})",
            seen=f"{', '.join(wrong)} of {_show(function, spec)}",
            action="correct the flag, or make it a constant of the file",
        )
    return {name: value for name, value in values.items() if isinstance(value, bool)}


def _show(function: ast.FunctionDef, spec: str) -> str:
    return f"def {function.name}({ast.unparse(function.args)}) in {spec.rpartition(':')[0]}"


def _bound_by(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement binds, including those inside an `if` or `try`."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)] + [
        n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)
    ]


def copy_files(code: Path, specs: Iterable[str]) -> None:
    """Copy the files of these `file.py:name`, and the neighbours they import, into `code`; keep existing copies.

    Raises:
        ConfigError: a file, or a module that it imports from its folder, cannot be read.
        OSError: `code` cannot be written.
    """
    for file in dict.fromkeys(Path(spec.rpartition(":")[0]) for spec in specs):
        target = copy_path(code, file)
        if target.is_file():
            continue
        for neighbour in find_neighbours(file) if file.is_file() else []:
            _copy(neighbour, target.parent / neighbour.relative_to(file.parent))
        _copy(file, target)  # last, so that an existing copy implies copied neighbours


def find_neighbours(file: Path) -> list[Path]:
    """Return the modules below the file's folder that it imports, directly or not, without running any."""
    finder = ModuleFinder(path=[str(file.parent)], excludes=[*sys.stdlib_module_names, "slurm_rl"])
    finder.run_script(str(file))
    files = [getattr(module, "__file__", None) for module in finder.modules.values()]
    return sorted({Path(path) for path in files if path} - {file})


def _copy(source: Path, target: Path) -> None:
    try:
        content = source.read_bytes()
    except OSError as error:
        action = "make the file, and the modules it imports from its folder, readable for the submitting user"
        raise ConfigError(
            "a function's file must be readable", seen=f"{source} ({error.strerror})", action=action
        ) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
