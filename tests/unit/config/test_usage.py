import ast
from functools import cache

import pytest

from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.run import RunConfig
from slurm_rl.config.tasks import TASKS
from slurm_rl.config.usage import READERS, find_readers
from tests.layers import PACKAGE

EVERY_TASK = ("name", "run_dir", "task", "cluster", "container", "job", "preflight", "ray")
"""Keys of the run and its machines, which every task reads."""


def test_readers_cover_every_section() -> None:
    assert {*EVERY_TASK, *(key for key in READERS if "." not in key)} == set(RunConfig.model_fields)
    assert {task for readers in READERS.values() for task in readers} == set(TASKS)


def test_parse_config_accepts_unused_keys_of_saved_config() -> None:
    tree = load_config(["+exp=sft_tiny"]).model_dump(mode="json")
    tree["warmup"]["num_steps"] = 250
    assert parse_config(tree).warmup.num_steps == 250


ENTRIES = {
    "grpo": ("trainers.grpo.main",),
    **{task: ("trainers.supervised.__main__", f"trainers.supervised.{task}") for task in ("sft", "rm", "dpo")},
    **dict.fromkeys(("openrlhf", "verl", "maxtext", "command"), ("node.external", "plan.external_argv")),
}
"""Entry modules of a task."""
BRING_UP = ("plan.job", "node.agent", "cli.submit", "cli.join", "launch.jobs")
WHOLE = ("cluster.slurm", "container", "reward.code")
"""Sections that are passed on as a whole."""


@cache
def look_into(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return our modules that a module imports, also late, and the attributes that it reads."""
    path = PACKAGE.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    imports, attributes = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slurm_rl."):
            parent = str(node.module).removeprefix("slurm_rl.")
            children = [f"{parent}.{alias.name}" for alias in node.names]
            is_package = PACKAGE.joinpath(*parent.split(".")).is_dir()
            imports |= {child for child in children if is_module(child)} or ({parent} if not is_package else set())
            imports |= {parent} if is_package else set()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("slurm_rl."):
            # A row of a table: "slurm_rl.models.fsdp2:FSDP2Backend".
            named = node.value.removeprefix("slurm_rl.").partition(":")[0]
            imports |= {named} if is_module(named) else set()
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
    return frozenset(imports), frozenset(attributes)


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def attributes_read(task: str) -> set[str]:
    """Return all attributes read by code that the task's processes import."""
    left, seen, found = [*ENTRIES[task], *BRING_UP], set[str](), set[str]()
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            imports, attributes = look_into(module)
            left += imports
            found |= attributes
    return found


@pytest.mark.parametrize("task", TASKS)
def test_task_code_reads_accepted_keys(task: str) -> None:
    accepted = {key for key in list_keys() if task in find_readers(key, task)}
    read = attributes_read(task)
    assert {key for key in accepted if key.rpartition(".")[2] not in read and not key.startswith(WHOLE)} == set()
