"""Time of `cancel` and until the run has ended, on disks that fail: `python -m tests.storage.cancel local slurm`.

The disks are real (disks.py); the trainer only counts. Cancel comes half a second after the disk has failed.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, job_id, submit, wait_for_step
from tests.storage.disks import DISKS, Disk
from tests.whole_run import find_processes


@dataclass(frozen=True)
class Times:
    """Seconds from the call of `cancel`."""

    answer_s: float
    end_s: float
    """Until no process of the run is left here, or Slurm reports the job as ended."""
    stderr: str


def cancel_local(disk: Disk, folder: Path) -> Times:
    """Cancel a run of this machine."""
    run, env = disk.path / "run", {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["+exp=demo", f"run_dir={run}", f"cluster.python={make_light_python(folder)}", "job.max_failures=0"]
    with (folder / "out").open("wb") as out:
        front = subprocess.Popen(
            [sys.executable, "-m", "slurm_rl", *words], cwd=folder, env=env, stdout=out, stderr=out
        )
    try:
        wait_for_step(run)
        return _cancel(disk, run, env, folder, lambda: front.poll() is not None and not find_processes(run))
    finally:
        front.kill()
        front.wait()


def cancel_on(cluster: Cluster, disk: Disk, folder: Path) -> Times:
    """Cancel a run over two nodes."""
    run = disk.path / "run"
    submit(cluster, run, make_light_python(folder))
    job = job_id(run)
    wait_for_step(run)

    def is_over() -> bool:
        state = cluster.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()
        return state not in ("RUNNING", "PENDING", "COMPLETING")

    return _cancel(disk, run, {**cluster.env, "PYTHONPATH": str(ROOT)}, folder, is_over)


def _cancel(disk: Disk, run: Path, env: dict[str, str], folder: Path, is_over: Callable[[], bool]) -> Times:
    disk.spoil()
    time.sleep(0.5)
    start = time.monotonic()
    argv = [sys.executable, "-m", "slurm_rl", "cancel", str(run)]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    answered = time.monotonic() - start
    wait_until(is_over, "the end of the run", timeout_s=120)
    return Times(answered, time.monotonic() - start, done.stderr)


def measure(launcher: str) -> dict[str, Times]:
    """Return the times of one trial by the state of the disk."""
    found = {}
    with contextlib.ExitStack() as stack:
        disks = {state: stack.enter_context(make(Path(tempfile.mkdtemp(dir="/tmp")))) for state, make in DISKS.items()}
        cluster = None
        if launcher == "slurm":
            root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
            shared = [ROOT, Path(sys.prefix), *(disk.path for disk in disks.values())]
            cluster = stack.enter_context(Cluster(root, num_nodes=2, shared=shared))
        for state, disk in disks.items():
            with tempfile.TemporaryDirectory(dir=ROOT.parent) as name:
                folder = Path(name)
                found[state] = cancel_local(disk, folder) if cluster is None else cancel_on(cluster, disk, folder)
            disk.mend()
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for state, times in measure(name).items():
            print(f"{name} {state}: cancel {times.answer_s:.1f} s, run ended {times.end_s:.1f} s")
