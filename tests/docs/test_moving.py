"""docs/from/moving-*.md: each row names a word of the other framework and an existing word of this project.

Their names are checked against their sources: TRL's as installed, OpenRLHF's and verl's in tests/train/external.
"""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.run import RunConfig
from tests.docs.markdown import DOCS, code_spans, read_tables

PAGES = sorted((DOCS / "from").glob("moving-*.md"))
ROWS = [(page, row) for page in PAGES for row in read_tables(page)]


@functools.cache
def find_field(key: str) -> bool:
    """Return whether a dotted key exists in RunConfig."""
    sections: list[type[BaseModel]] = [RunConfig]
    for name in key.split("."):
        fields = [section.model_fields[name] for section in sections if name in section.model_fields]
        if not fields:
            return False
        annotation = fields[0].annotation
        options = [annotation, *get_args(annotation)]
        sections = [it for it in options if isinstance(it, type) and issubclass(it, BaseModel)]
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rows_name_both_projects_words(page: Path) -> None:
    rows = read_tables(page)
    assert len(rows) >= 40
    for theirs, ours, _ in rows:
        assert len(code_spans(theirs)) == 1, theirs
        assert ours == "-" or len(code_spans(ours)) == 1, ours


@pytest.mark.parametrize(("page", "row"), ROWS, ids=[f"{page.stem}-{row[0]}" for page, row in ROWS])
def test_our_names_exist(page: Path, row: list[str]) -> None:
    for word in code_spans(row[1]):
        key, equals, value = word.partition("=")
        if key.startswith("+"):
            assert (conf_dir() / key[1:] / f"{value}.yaml").is_file(), word
        elif "." not in key and key in load_verbs().by_name:
            assert not equals
        else:
            assert find_field(key), f"{page.name}: no key {key}"
            if equals:
                section = key.split(".")[0]
                experiment = f"{section}_tiny" if section in ("sft", "rm", "dpo") else "demo"
                config = load_config([f"exp={experiment}", word])
                assert str(functools.reduce(getattr, key.split("."), config)) == value


def test_keys_of_notes_and_pages_exist() -> None:
    sections = "|".join(name for name, field in RunConfig.model_fields.items() if name not in ("name", "run_dir"))
    pattern = re.compile(rf"(?:{sections})(?:\.[a-z_]+)+")
    for page in sorted([*DOCS.glob("*.md"), *(DOCS / "reference").glob("*.md"), *PAGES]):
        cells = [row[2] for row in read_tables(page)] if page in PAGES else []
        text = "\n".join(cells) if page in PAGES else page.read_text()
        for word in code_spans(text):
            key = word.partition("=")[0]
            if pattern.fullmatch(key) and not key.startswith(("external.args", "external.resume")):
                parts = key.split(".")
                # Tables with user-defined names, such as reward.verifiers.math.
                known = any(find_field(".".join(parts[:length])) for length in range(2, len(parts) + 1))
                assert known or key.endswith((".json", ".jsonl", ".py", ".yaml")), f"{page.name}: no key {key}"


def test_trl_has_words_of_its_page() -> None:
    """TRL's configs and transformers' TrainingArguments, read from their sources, have the fields."""
    words = {word for row in read_tables(DOCS / "from/moving-trl.md") for word in code_spans(row[0])}
    files = [("trl", f"trainer/{name}_config.py") for name in ("grpo", "sft", "dpo", "reward", "base")]
    for package, file in (*files, ("transformers", "training_args.py")):
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        for node in ast.walk(ast.parse((Path(spec.origin).parent / file).read_text())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                words.discard(node.target.id)
    assert words == set()
