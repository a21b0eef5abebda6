"""Checkpoints are written in the background, and the loop reports their failures."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import reserve_reason, write_or_report
from slurm_rl.models.checkpoint.step_saver import parse_state
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.run_dir.run_dir import RunDir, write_json
from slurm_rl.run_dir.save_times import Measured
from slurm_rl.trainers.grpo.trainer_state import RunSaver, TrainerState
from slurm_rl.trainers.supervised.state import LoopState
from slurm_rl.workers.train_workers import TrainWorker


class FakePolicy:
    """A policy that writes its file when the test allows it."""

    def __init__(self) -> None:
        self.may_write, self.writer, self.broken = threading.Event(), ThreadPoolExecutor(1), False

    def call(self, method: str, folder: Path, background: bool) -> list[list[Path]]:
        assert method == "save"
        if not background:
            (folder / "rank-0.pt").write_text("weights")
            return [[]]

        def write(file: BinaryIO) -> None:
            assert self.may_write.wait(30)
            if self.broken:
                raise OSError("the disk is gone")
            file.write(b"weights")

        reserve_reason(folder / "rank-0.pt")
        self.writer.submit(write_or_report, folder / "rank-0.pt", write)
        return [[folder / "rank-0.pt"]]


@pytest.fixture
def policy() -> FakePolicy:
    return FakePolicy()


def build_saver(root: Path, policy: Any, *words: str) -> RunSaver:
    run = RunDir(root)
    run.path.mkdir(exist_ok=True)
    return RunSaver(run, load_config(["+exp=demo", *words]), policy)


@pytest.fixture
def saver(tmp_path: Path, policy: FakePolicy) -> Iterator[RunSaver]:
    saver = build_saver(tmp_path / "run", policy)
    yield saver
    policy.may_write.set()
    saver.close(30)


def names(saver: RunSaver) -> list[str]:
    return sorted(path.name for path in saver.store.root.glob("step-*"))


def test_background_save_keeps_state_of_its_step(saver: RunSaver, policy: FakePolicy) -> None:
    state = TrainerState(step=3)
    saver.save(state, {})
    state.step = 4
    saver.check()
    assert names(saver) == []
    policy.may_write.set()
    saver.wait()
    assert names(saver) == ["step-3"]
    newest = CheckpointStore(saver.store.root).latest()
    assert newest is not None and newest.meta["step"] == 3


def test_failed_save_is_reported_and_older_one_stays(saver: RunSaver, policy: FakePolicy) -> None:
    policy.may_write.set()
    saver.save(TrainerState(step=1), {})
    saver.wait()
    policy.broken = True
    saver.save(TrainerState(step=2), {})
    with pytest.raises(CheckpointError, match="the disk is gone"):
        saver.save(TrainerState(step=3), {})
    assert names(saver) == ["step-1"]


def test_older_checkpoints_are_removed_after_newer_is_complete(saver: RunSaver, policy: FakePolicy) -> None:
    policy.may_write.set()
    for step in range(5):
        saver.save(TrainerState(step=step, best_step=1), {})
    saver.wait()
    assert names(saver) == ["step-1", "step-3", "step-4"]


def test_ending_run_does_not_wait_for_dead_worker(saver: RunSaver) -> None:
    saver.save(TrainerState(step=1), {})
    saver.close(within_s=0.0)
    with pytest.raises(CheckpointError, match="a worker that died"):
        saver.wait()
    assert names(saver) == []


@pytest.mark.parametrize(
    ("words", "learned", "lead_s"),
    [
        ((), Measured(), 120),
        ((), Measured(num_saves=3, save_s=1000.0, rest_s=12.5), 1093),
        (("job.checkpoint_lead_s=300",), Measured(num_saves=3, save_s=250.0), 300),
        (("job.checkpoint_lead_s=100",), Measured(num_saves=3, save_s=500.0), 100),
    ],
)
def test_at_stop_measured_save_fits_behind_batches_in_flight(
    words: tuple[str, ...], learned: Measured, lead_s: int, tmp_path: Path, policy: FakePolicy
) -> None:
    asked_s: list[float | None] = [None]
    run = RunDir(tmp_path)
    saver = RunSaver(run, load_config(["+exp=demo", *words]), policy, stopped_s=lambda: asked_s[0])  # type: ignore[arg-type]
    write_json(run.learned, asdict(learned))
    assert saver.left_s() is None, "a save that no stop hurries has its own deadline"
    for asked_s[0] in (0.0, learned.rest_s, lead_s / 2, float(lead_s)):
        settle_s, left_s = saver.settle_s(), saver.left_s()
        assert left_s == lead_s - 20 - asked_s[0]
        assert 0 <= settle_s <= lead_s / 2
        # If the lead has room for it, however long the batches take.
        assert settle_s == 0 or left_s - settle_s >= learned.save_s
    asked_s[0] = 0.0
    assert saver.settle_s() == pytest.approx({120: 60, 1093: 73, 300: 30, 100: 0}[lead_s])
    saver.close(0)


@pytest.mark.parametrize("state", [TrainerState(step=3), LoopState(step=3)])
def test_parse_state_refuses_unknown_field(state: Any) -> None:
    assert parse_state(type(state), asdict(state)) == state
    with pytest.raises(CheckpointError, match="'unknown'"):
        parse_state(type(state), {**asdict(state), "unknown": 1})


class Workers:
    """A worker group that writes its number."""

    def __init__(self, number: int = 0, *, is_built: bool = True) -> None:
        self.number, self.is_built = number, is_built
        self.dealt: list[Path] = []

    @property
    def workers(self) -> Any:
        return self

    def call(self, method: str, *args: Any) -> list[list[Path]]:
        if method == "save":
            (args[0] / "number").write_text(str(self.number))
        elif method == "load":
            self.number = int((args[0] / "number").read_text())
        return [[]]

    def deal(self, method: str, items: Sequence[Path]) -> list[Any]:
        self.dealt = list(items)
        return list(getattr(TrainWorker, method)(self, items))


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
    assert {file.name for file in policy.dealt} == {"number"}, "the ranks hash their files"
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
