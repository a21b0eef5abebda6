"""The ranks of a node, watched: which step of which rank failed or hangs, and how fast the others were."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.plugins.health.doctor.finding import Finding, Question
from slurm_rl.plugins.health.doctor.gpus import TOOLS
from slurm_rl.plugins.health.doctor.judge import NAMES, Outcome, judge_ranks
from slurm_rl.plugins.health.doctor.meeting import meet
from slurm_rl.plugins.health.doctor.probes import last_words
from slurm_rl.plugins.health.doctor.rank import BETWEEN, MATMUL, STEPS, TORCH, WITHIN, Words
from slurm_rl.run_dir import write_json

_POLL_S = 0.05
# The first includes the import from a file system that may be cold, for all ranks at once; the last one the meeting.
DEADLINES_S = {TORCH: 90.0, MATMUL: 30.0, WITHIN: 60.0, BETWEEN: 110.0}
_RANKS_ON_CPU = 2
# A step that others fail in is left soon by those who are not waiting for them.
_GRACE_S = 5.0


@dataclass
class Rank:
    """A process, and what it has said so far."""

    process: subprocess.Popen[bytes]
    said: Path
    begun: dict[str, float] = field(default_factory=dict)
    """Step -> when that was seen here."""
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Step -> why."""
    late: str | None = None
    """The step that it was ended in, for it took too long."""

    def read(self) -> None:
        for line in self.said.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            if not line.startswith("{") or not line.endswith("\n"):
                continue
            found = json.loads(line)
            step, state = found.pop("step"), found.pop("state")
            self.begun.setdefault(step, time.monotonic())
            if state == "done":
                self.done[step] = found
            elif state == "failed":
                self.failed[step] = found["error"]
        self._note_death()

    def _note_death(self) -> None:
        status = self.process.poll()
        if status and not self.failed:
            words = last_words(Path(f"{self.said}.err").read_text(encoding="utf-8", errors="replace"))
            self.failed[self.step or TORCH] = f"its process ended with {status}: {words}"

    @property
    def step(self) -> str | None:
        """The one that it is in."""
        return next((step for step in reversed(STEPS) if step in self.begun and step not in self.done), None)

    def is_late(self) -> bool:
        step = self.step
        return step is not None and time.monotonic() - self.begun[step] > DEADLINES_S[step]


def look_at_ranks(question: Question) -> list[Finding]:
    """`torch`, `matmul`, `clocks` and both kinds of all-reduce."""
    if importlib.util.find_spec("torch") is None:
        return [Finding(name, "unseen", "torch is not installed here") for name in NAMES]
    folder = Path(tempfile.mkdtemp(prefix="srl-ranks-"))
    try:
        ranks = [_start(question, local, folder) for local in range(num_ranks(question))]
        if question.plan.num_nodes > 1:
            # It ends with this process, if it has not yet.
            threading.Thread(target=_meet, args=(question, folder), daemon=True).start()
        load = watch(ranks, TOOLS[question.plan.accelerator] if question.on_gpus else None, folder)
        outcomes = [Outcome(rank.done, rank.failed, rank.late) for rank in ranks]
        return judge_ranks(question, outcomes, load)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def num_ranks(question: Question) -> int:
    return question.plan.gpus_per_node if question.on_gpus else _RANKS_ON_CPU


def _start(question: Question, local: int, folder: Path) -> Rank:
    plan, said = question.plan, folder / f"rank-{local}"
    words = Words(local, num_ranks(question), question.rank, plan.num_nodes, question.on_gpus, str(folder))
    argv = [sys.executable, "-m", "slurm_rl.plugins.health.doctor.rank", *words.to_argv()]
    # A launcher's variables of a rank are not these.
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    with said.open("wb") as out, Path(f"{said}.err").open("wb") as err:
        return Rank(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err), said)


def _meet(question: Question, folder: Path) -> None:
    with contextlib.suppress(OSError):  # the folder is gone with the ranks
        write_json(folder / "meeting.json", meet(question))


def watch(ranks: Sequence[Rank], tool: Sequence[str] | None, folder: Path) -> str:
    """Until all are through, or one is late or has failed; ends those that are left.

    Returns:
        What `tool` said while all of them multiplied.
    """
    asked: subprocess.Popen[bytes] | None = None
    failed_at: float | None = None
    while any(rank.process.poll() is None for rank in ranks):
        for rank in ranks:
            rank.read()
        if asked is None and tool and shutil.which(tool[0]) and all(MATMUL in rank.begun for rank in ranks):
            with (folder / "load").open("wb") as out:
                asked = subprocess.Popen(tool, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        if any(rank.failed for rank in ranks):
            failed_at = failed_at or time.monotonic()
        if any(rank.is_late() for rank in ranks) or _is_over(ranks, failed_at):
            break
        time.sleep(_POLL_S)
    for rank in ranks:
        rank.read()
        if rank.process.poll() is None:
            rank.late = rank.step if rank.is_late() else None
            rank.process.kill()
    if asked is not None and asked.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked.wait(_GRACE_S)
        asked.kill()
    return (folder / "load").read_text(encoding="utf-8", errors="replace") if asked is not None else ""


def _is_over(ranks: Sequence[Rank], failed_at: float | None) -> bool:
    """Whether the others can only wait for one that failed."""
    if failed_at is None or time.monotonic() - failed_at < _GRACE_S:
        return False
    first = min(STEPS.index(step) for rank in ranks for step in rank.failed)
    return all(rank.failed or first == 0 or STEPS[first - 1] in rank.done for rank in ranks)
