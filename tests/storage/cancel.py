"""How long `cancel` takes, and how long until the run has ended, on disks that fail: `python -m tests.storage.cancel`.

The disks are real ones (disks.py), and so is the run but for its trainer, which only counts. Cancel comes half a
second after the disk has gone wrong. The longest of several trials is shown, in seconds.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, job_id, submit, wait_for_step
from tests.storage.disks import DISKS, Disk
from tests.whole_run import find_processes

_TRIALS = 3
_LATER_S = 0.5


@dataclass(frozen=True)
class Times:
    """Seconds from the call of `cancel`."""

    answer_s: float
    end_s: float
    """No process of the run is left here; Slurm calls the job ended."""
    said: str
    """By the command."""


def cancel_local(disk: Disk, folder: Path) -> Times:
    """A run of this machine."""
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


def cancel_on(cluster: Cluster) -> Callable[[Disk, Path], Times]:
    """A run over two nodes."""

    def cancel(disk: Disk, folder: Path) -> Times:
        run = disk.path / "run"
        job = (submit(cluster, run, make_light_python(folder)), job_id(run))[1]
        wait_for_step(run)
        states = ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]
        is_over = lambda: cluster.run(states).stdout.strip() not in ("RUNNING", "PENDING", "COMPLETING")  # noqa: E731
        return _cancel(disk, run, {**cluster.env, "PYTHONPATH": str(ROOT)}, folder, is_over)

    return cancel


def _cancel(disk: Disk, run: Path, env: dict[str, str], folder: Path, is_over: Callable[[], bool]) -> Times:
    disk.spoil()
    time.sleep(_LATER_S)
    start = time.monotonic()
    argv = [sys.executable, "-m", "slurm_rl", "cancel", str(run)]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    answered = time.monotonic() - start
    wait_until(is_over, "the end of the run", timeout_s=120)
    return Times(answered, time.monotonic() - start, done.stderr)


@contextlib.contextmanager
def open_cluster(folders: list[Path]) -> Iterator[Cluster]:
    """A Slurm whose nodes see the disks."""
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    with Cluster(root, num_nodes=2, shared=[ROOT, Path(sys.prefix), *folders]) as cluster:
        yield cluster


def measure(launcher: str, states: list[str]) -> dict[str, Times]:
    """State -> the longest times of one trial in it."""
    found = {}
    with contextlib.ExitStack() as stack:
        folders = {state: Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp")) for state in states}
        disks = {state: stack.enter_context(DISKS[state](folder)) for state, folder in folders.items()}
        cancel = cancel_local
        if launcher == "slurm":
            cancel = cancel_on(stack.enter_context(open_cluster([disk.path for disk in disks.values()])))
        for state, disk in disks.items():
            with tempfile.TemporaryDirectory(dir=ROOT.parent) as folder:
                found[state] = cancel(disk, Path(folder))
            disk.mend()
    return found


def render(tables: dict[str, list[dict[str, Times]]]) -> str:
    lines = ["| disk | " + " | ".join(f"{launcher}: cancel | run ended" for launcher in tables) + " |"]
    lines.append("|---" * (1 + 2 * len(tables)) + "|")
    for state in DISKS:
        cells = []
        for trials in tables.values():
            cells += [max(trial[state].answer_s for trial in trials), max(trial[state].end_s for trial in trials)]
        lines.append(f"| {state} | {' | '.join(f'{seconds:.1f}' for seconds in cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(
        render({one: [measure(one, list(DISKS)) for _ in range(_TRIALS)] for one in sys.argv[1:] or ("local", "slurm")})
    )
