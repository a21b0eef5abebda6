"""A complete run on a real disk that fills up or turns read-only during a save; later all metrics are identical."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.launch.controller.ends import newest_step
from slurm_rl.models.checkpoint.store import CheckpointStore
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.storage.disks import Disk, full, read_only
from tests.whole_run import exact_rows, finish, start_run, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_SMALL_KB = 64 << 10


def a_checkpoint_is_being_written(run: RunDir) -> bool:
    """Return whether a second or later checkpoint is being written."""
    return newest_step(run) >= 0 and any(run.checkpoints.glob(".step-*.tmp*"))


def metrics_grow(run: RunDir) -> bool:
    return sum(row["stage"] == "grpo" for row in read_rows(run.metrics)) >= 3


def logs_begin(run: RunDir) -> bool:
    """Nothing is trained yet: Ray has just started."""
    return any(row["kind"] == "ray/head_ready" for row in read_rows(run.events))


def spoil_when(run: RunDir, disk: Disk, is_time: Callable[[RunDir], bool]) -> int:
    """Spoil the disk when `is_time`; return the newest complete checkpoint, or -1."""
    wait_for(lambda: is_time(run), "the moment never came", pause_s=0.002)
    newest = newest_step(run)
    disk.spoil()
    return newest


@pytest.mark.parametrize(
    ("is_time", "is_full"),
    [
        pytest.param(a_checkpoint_is_being_written, True, id="full-checkpoint"),
        pytest.param(metrics_grow, True, id="full-metrics"),
        pytest.param(logs_begin, True, id="full-logs"),
        pytest.param(a_checkpoint_is_being_written, False, id="read-only-checkpoint"),
    ],
)
def test_run_on_failing_disk_ends_and_resumes_identically(
    whole_run: Path, tmp_path: Path, is_time: Callable[[RunDir], bool], is_full: bool
) -> None:
    with full(tmp_path, _SMALL_KB) if is_full else read_only(tmp_path) as disk:
        run = RunDir(disk.path / "run")
        process = start_run(run.path, "job.max_failures=0")
        whole = spoil_when(run, disk, is_time)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1, output
        word = "No space left on device" if is_full else "Read-only file system"
        assert word in output and f"{disk.path} has " in output, output
        store = CheckpointStore(run.checkpoints)
        newest = store.latest()
        assert (newest.step if newest else -1) >= whole and not store.skipped
        disk.mend()
        finish(start_run(run.path, verb="resume"))
        assert exact_rows(run.path) == exact_rows(whole_run)
