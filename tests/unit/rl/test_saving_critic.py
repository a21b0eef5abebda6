from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.trainer_state import RunSaver, TrainerState


class Workers:
    """A worker group that writes its number."""

    def __init__(self, number: int = 0, *, is_built: bool = True) -> None:
        self.number, self.is_built = number, is_built

    @property
    def workers(self) -> Workers:
        return self

    def call(self, method: str, *args: Any) -> list[list[Path]]:
        if method == "save":
            (args[0] / "number").write_text(str(self.number))
        elif method == "load":
            self.number = int((args[0] / "number").read_text())
        return [[]]


def make_saver(path: Path, policy: Workers, critic: Workers | None) -> RunSaver:
    parts: Any = (policy, critic)
    return RunSaver(RunDir(path), load_config(["+exp=demo", "+algorithm=ppo", "checkpoint.background=false"]), *parts)


@pytest.mark.parametrize("stage", ["grpo", "warmup"])
def test_critic_is_restored_after_build(stage: str, tmp_path: Path) -> None:
    # A run without warm-up keeps its initial stage.
    state = TrainerState(step=7, stage=stage, kl_coefficient=0.25)
    make_saver(tmp_path, Workers(1), Workers(2)).save(state, {})
    policy, critic = Workers(), Workers()
    saver = make_saver(tmp_path, policy, critic)
    found = saver.restore()
    assert found is not None and found[0] == state
    assert (policy.number, critic.number) == (1, 0), (
        "there is nothing to load into before the warm-up is known to be over"
    )
    saver.restore_critic()
    assert critic.number == 2


@pytest.mark.parametrize("before", [Workers(2, is_built=False), None])
def test_unsaved_critic_keeps_initial_weights(before: Workers | None, tmp_path: Path) -> None:
    make_saver(tmp_path, Workers(1), before).save(TrainerState(step=7), {})
    assert not list(tmp_path.glob("checkpoints/*/critic"))
    critic = Workers(5)
    saver = make_saver(tmp_path, Workers(), critic)
    saver.restore()
    saver.restore_critic()
    assert critic.number == 5


def test_new_run_restores_nothing(tmp_path: Path) -> None:
    saver = make_saver(tmp_path, Workers(), Workers(5))
    assert saver.restore() is None
    saver.restore_critic()
