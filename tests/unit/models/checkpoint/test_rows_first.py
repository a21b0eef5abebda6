"""A checkpoint counts only after its rows are on disk."""

import errno
import os
from pathlib import Path

import pytest

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.step_saver import StepSaver
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.run_dir import RunDir


def test_rows_are_synced_before_checkpoint_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, synced = RunDir(tmp_path / "run"), []
    append_row(run.metrics, {"step": 0})
    append_row(run.events, {"kind": "attempt/started"})
    fsync = os.fsync

    def note(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if path in (run.metrics, run.events):
            synced.append((path.name, any(run.checkpoints.glob("step-*"))))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    with StepSaver(run, 2).saving(0, {}) as (folder, _):
        (folder / "state").write_text("x")
    assert synced == [("metrics.jsonl", False), ("events.jsonl", False)]
    assert (run.checkpoints / "step-0").is_dir()


def test_unsyncable_rows_leave_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    append_row(run.metrics, {"step": 0})

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    saver = StepSaver(run, 2)
    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(CheckpointError, match=r"Input/output error.*metrics\.jsonl"),
        saver.saving(0, {}) as (folder, _),
    ):
        (folder / "state").write_text("x")
    assert not list(run.checkpoints.glob("*step-0*"))
