"""The probes: a row each, started as processes with deadlines of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_rl.errors import BringUpError
from slurm_rl.node.driver import name_signal
from slurm_rl.node.environment import read_device_uuids
from slurm_rl.plan.visibility import normalise_gpu_visibility
from slurm_rl.plugins.health.doctor.finding import Finding, Question

# Of a process that hangs in the kernel not even SIGKILL makes an end.
_KILL_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Probe:
    """Something to look at."""

    look: str
    """`module:function`, a `Question` to its findings; run by slurm_rl/plugins/health/doctor/probe.py."""
    deadline_s: float
    is_first: bool = False
    """Before the others: what they do would be seen."""
    as_granted: bool = False
    """In the environment as Slurm made it; the others have that of a run's processes."""


_HOME = "slurm_rl.plugins.health.doctor"

PROBES: Final[dict[str, Probe]] = {
    "versions": Probe(f"{_HOME}.system:look_at_versions", 30),
    "driver": Probe(f"{_HOME}.gpus:look_at_gpus", 30, is_first=True),
    "masks": Probe(f"{_HOME}.gpus:look_at_masks", 20, is_first=True, as_granted=True),
    # torch, matmul, clocks, and all-reduce within the node and between nodes: one process a GPU does them all.
    "ranks": Probe(f"{_HOME}.ranks:look_at_ranks", 240),
    # Both from a file system that is cold, and slow with thousands of small files.
    "vllm": Probe(f"{_HOME}.imports:look_at_vllm", 120),
    "flash-attn": Probe(f"{_HOME}.imports:look_at_flash_attn", 90),
    "/dev/shm": Probe(f"{_HOME}.system:look_at_shm", 10),
    "memlock": Probe(f"{_HOME}.system:look_at_memlock", 10),
    "rdma": Probe(f"{_HOME}.system:look_at_rdma", 10),
    "tmp_root": Probe(f"{_HOME}.system:look_at_tmp_root", 20),
    "run_root": Probe(f"{_HOME}.system:look_at_run_root", 20),
}


def run_probes(question: Question, probes: Mapping[str, Probe] = PROBES) -> list[Finding]:
    """All of them, in the order of the table."""
    granted = {**os.environ, **question.plan.env}
    normal = normal_environment(question, granted)
    found: dict[str, list[Finding]] = {}
    for is_first in (True, False):
        now = {name: probe for name, probe in probes.items() if probe.is_first == is_first}
        started = [_start(question, name, granted if probe.as_granted else normal) for name, probe in now.items()]
        found |= wait_for_all(started, [probe.deadline_s for probe in now.values()])
    return [finding for name in probes for finding in found[name]]


def normal_environment(question: Question, granted: Mapping[str, str]) -> dict[str, str]:
    """That of a run's processes: one mask of GPUs, and nothing of Slurm's step."""
    plan = question.plan
    env = {key: value for key, value in granted.items() if not key.startswith(("SLURM_", "PMI"))}
    uuids = read_device_uuids() if plan.accelerator == "amd" else []
    try:
        return normalise_gpu_visibility(granted, plan.accelerator, plan.gpus_per_node, uuids).apply(env)
    except BringUpError:  # the probe of the masks says so
        return env


@dataclass
class Started:
    """A probe at work; what it prints is in files, so that none of it can make it wait."""

    name: str
    process: subprocess.Popen[bytes]
    said: Path
    began: float


def _start(question: Question, name: str, env: Mapping[str, str]) -> Started:
    folder = Path(tempfile.mkdtemp(prefix="srl-doctor-"))
    argv = [
        sys.executable,
        "-m",
        "slurm_rl.plugins.health.doctor.probe",
        name,
        str(question.folder),
        str(question.rank),
    ]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
    return Started(name, process, folder, time.monotonic())


def wait_for_all(started: Sequence[Started], deadlines_s: Sequence[float]) -> dict[str, list[Finding]]:
    """What each has found; one that is late is ended, and its lateness is the finding."""
    found: dict[str, list[Finding]] = {}
    while len(found) < len(started):
        for one, deadline_s in zip(started, deadlines_s, strict=True):
            if one.name in found:
                continue
            is_late = time.monotonic() - one.began > deadline_s
            if is_late or one.process.poll() is not None:
                found[one.name] = _read(one, deadline_s if is_late and one.process.poll() is None else None)
        time.sleep(_POLL_S)
    return found


def _read(one: Started, late_s: float | None) -> list[Finding]:
    if late_s is not None:
        end_group(one.process)
    lines = (one.said / "out").read_text(encoding="utf-8", errors="replace").splitlines()
    words = last_words((one.said / "err").read_text(encoding="utf-8", errors="replace"))
    for file in (one.said / "out", one.said / "err"):
        file.unlink()
    one.said.rmdir()
    found = [Finding(**json.loads(line)) for line in lines if line.startswith("{") and line.endswith("}")]
    status = one.process.returncode
    if late_s is not None:
        action = "try it by hand on that node; what hangs in the kernel needs its administrators"
        found.append(Finding(one.name, "wrong", f"no answer: {words}", f"an answer within {late_s:g} s", action))
    elif status != 0:
        how = name_signal(-status) if status < 0 else f"exit status {status}"
        found.append(Finding(one.name, "wrong", f"it ended with {how}: {words}", "an answer"))
    return found


def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to it and all in its process group; not waited for longer than a moment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_S)


def last_words(text: str) -> str:
    """The last line that says anything.

    >>> last_words("Traceback\\nImportError: libcudart.so.13\\n\\n")
    'ImportError: libcudart.so.13'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no word"
