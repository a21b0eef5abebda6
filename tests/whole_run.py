"""One uninterrupted run that heavy tests compare with."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.docs.markdown import DOCS, read_blocks
from tests.tiny_models import SMALL_MODEL

ROOT = Path(__file__).parents[1]

# A smaller model takes seconds instead of half a minute; everything else is as in the demo.
OVERRIDES = (
    "+exp=demo",
    SMALL_MODEL,
    "policy.num_threads=1",
    "data.largest_addend=9",
    "data.num_eval=20",
    "warmup.num_steps=40",
    "warmup.batch_size=32",
    "warmup.optim.lr=5e-3",
    "algorithm.kl.coef=0.001",
    "trainer.num_steps=6",
    "trainer.prompts_per_step=8",
    "algorithm.group_size=4",
    "checkpoint.interval=2",
    "eval.interval=3",
    "logging.wandb.mode=disabled",
)


def start_run(
    run_dir: Path, *extra: str, verb: str = "submit", base: Sequence[str] = OVERRIDES
) -> subprocess.Popen[str]:
    """Start `python -m slurm_rl` as a user does, in its own folder."""
    words = [str(run_dir)] if verb == "resume" else [f"run_dir={run_dir}", *base, *extra]
    return subprocess.Popen(
        [sys.executable, "-m", "slurm_rl", verb, *words],
        cwd=run_dir.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 600) -> str:
    """Wait until a command has succeeded; return its output."""
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, output
    return output


def run_cli(folder: Path, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 900) -> str:
    """Run `python -m slurm_rl <words>` in `folder`, which must succeed; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "slurm_rl", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def exact_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return metrics.jsonl without timings."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def stage_rows(run_dir: Path, stage: str = "grpo") -> list[dict[str, Any]]:
    return [row for row in exact_rows(run_dir) if row["stage"] == stage]


def events_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(run_dir / "events.jsonl") if row["kind"] == kind]


def train(run_dir: Path, *extra: str, base: Sequence[str] = OVERRIDES) -> list[dict[str, Any]]:
    """Run to the end; return metrics.jsonl without timings."""
    finish(start_run(run_dir, *extra, base=base))
    return exact_rows(run_dir)


def wait_for(
    is_true: Callable[[], bool],
    what: str,
    process: subprocess.Popen[Any] | None = None,
    *,
    pause_s: float = 0.02,
    timeout_s: float = 600,
) -> None:
    """Wait until `is_true`; fail after `timeout_s`, or when the process has ended before."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


def kill_trainer(run: RunDir, process: subprocess.Popen[str], step: int) -> None:
    """Send SIGKILL to the trainer once a checkpoint of at least this step exists."""

    def is_saved() -> bool:
        return any(row["step"] >= step for row in events_of(run.path, "checkpoint/saved"))

    wait_for(is_saved, "no checkpoint", process, pause_s=0.05)
    os.kill(find_driver(run.path), signal.SIGKILL)


def find_driver(run_dir: Path) -> int:
    """Return the pid of the run's trainer."""
    found = [pid for pid in find_processes(run_dir) if "slurm_rl.trainers.grpo.main" in command_line(pid)]
    assert found, "no trainer to kill"
    return min(found)  # a forked child has the parent's command line until exec


def find_processes(run_dir: Path) -> list[int]:
    """Return the living processes whose environment or command line names the run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if os.fsencode(run_dir) in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def command_line(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def read_examples(page: str) -> list[str]:
    """Return the Python code blocks of a page of docs/."""
    return [block.text for block in read_blocks(DOCS / page) if block.language == "python"]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run, made by the script of docs/python-api.md.

    Tests compare it with runs of the command line.
    """
    folder = tmp_path_factory.mktemp("runs")
    example, demo = read_examples("python-api.md")[0], '["+exp=demo"]'
    assert example.count(demo) == 1
    (folder / "example.py").write_text(example.replace(demo, repr(list(OVERRIDES))))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "example.py"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    [run_dir] = folder.glob("runs/first-*")
    said = done.stdout.splitlines()
    assert said[:2] == [f"slurm_rl.Run({str(run_dir)!r})", "finished"]
    assert said[-1] == str(run_dir / "report.html")
    return run_dir
