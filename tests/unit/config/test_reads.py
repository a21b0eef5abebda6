"""A key that the task does not read is refused, with where it would belong."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import compose, load_config, parse_config
from slurm_rl.config.reads import EVERY_TASK, READERS, find_changed, find_readers
from slurm_rl.config.run import RunConfig
from slurm_rl.config.tasks import TASKS
from slurm_rl.errors import ConfigError
from tests.layers import PACKAGE


def test_every_section_has_its_readers() -> None:
    assert {*EVERY_TASK, *(key for key in READERS if "." not in key)} == set(RunConfig.model_fields)
    assert {task for readers in READERS.values() for task in readers} == set(TASKS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["+exp=sft_tiny", "rollout.max_tokens=8"],
            "rollout.max_tokens=8.*=grpo, here it is supervised.max_tokens",
        ),
        (["+exp=dpo_tiny", "sft.neftune_alpha=5"], "task=dpo does not read sft.neftune_alpha.*read with task=sft"),
        (["+exp=rm_tiny", "+algorithm=dapo"], "algorithm.clip_high.*algorithm.overlong.buffer_share=0.2"),
        (["+exp=demo", "supervised.batch_size=8"], "supervised.batch_size=8.*task=sft, rm, dpo"),
        (["+exp=demo", "data.chosen_key=better"], "data.chosen_key=better.*task=rm, dpo"),
        (["+exp=sft_tiny", "eval.greedy=false"], "eval.greedy=False"),
        (["+exp=command", "model.path=a", "optim.lr=1"], "task=command does not read model.path, optim.lr"),
        (["+exp=command", "seed=1", "checkpoint.keep=9"], "task=command does not read seed, checkpoint.keep"),
        (["+exp=sft_tiny", "logging.samples_per_step=1"], "samples_per_step.*read with task=grpo"),
    ],
)
def test_what_the_task_does_not_read_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(words)


def test_what_it_reads_and_defaults_are_not_refused() -> None:
    words = ["+exp=sft_tiny", "trainer.step_timeout_s=9", "checkpoint.every=7", "rollout.max_tokens=1024"]
    config = load_config([*words, "+cluster=nvidia_h100"])
    assert dict(find_changed(config))["trainer.step_timeout_s"] == 9


def test_a_run_of_before_this_rule_still_loads() -> None:
    tree = load_config(["+exp=sft_tiny"]).model_dump(mode="json")
    tree["warmup"]["num_steps"] = 250
    assert parse_config(tree).warmup.num_steps == 250


@pytest.mark.parametrize("word", ["rollout.top_p=0.9", "rollout.top_k=20", "rollout.repetition_penalty=1.1"])
def test_what_bends_the_distribution_needs_a_correction(word: str) -> None:
    load_config(["+exp=demo", word])
    words = ["+exp=demo", word, "algorithm.correction.kind=null"]
    name, _, value = word.removeprefix("rollout.").partition("=")
    with pytest.raises(ConfigError, match=rf"correction\.kind must not be null.*{name}={value}.*Next: set .*=auto"):
        load_config(words)
    # What began before there was such a rule is read all the same, and goes on.
    assert parse_config(compose(words)).algorithm.correction.kind is None


def test_a_sampler_that_is_the_policy_needs_none() -> None:
    load_config(["+exp=demo", "algorithm.correction.kind=null", "rollout.stop=[x]", "rollout.temperature=0.5"])


ENTRIES = {
    "grpo": ("trainers.grpo.main",),
    **{task: ("trainers.supervised.__main__", f"trainers.supervised.{task}") for task in ("sft", "rm", "dpo")},
    **dict.fromkeys(("openrlhf", "verl", "maxtext", "command"), ("node.external", "plugins.external.argv")),
}
"""Modules that a task begins in, beside what brings it up."""
BRING_UP = ("plan.job", "node.agent", "cli.submit", "cli.node", "launch.jobs")
WHOLE = ("cluster.slurm", "container", "reward.code")
"""Sections that are passed on as they are."""


@cache
def look_into(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """The modules of ours that a module imports, late ones too, and the attributes that it reads."""
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
    """All attributes that code reads which this task's processes import."""
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
def test_a_task_reads_each_key_that_it_does_not_refuse(task: str) -> None:
    accepted = {key for key in list_keys() if task in find_readers(key, task)}
    read = attributes_read(task)
    assert {key for key in accepted if key.rpartition(".")[2] not in read and not key.startswith(WHOLE)} == set()
