"""A key that the task does not read is refused, with where it would belong."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config, parse_config
from slurm_rl.config.reads import EVERY_TASK, READERS, find_changed
from slurm_rl.config.run import RunConfig
from slurm_rl.config.tasks import TASKS
from slurm_rl.errors import ConfigError


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
