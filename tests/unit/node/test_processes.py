"""Only processes with the mark are found and ended. Uses real processes."""

import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.node import processes
from slurm_rl.node.processes import MARK, die_with_parent, end_marked, find_marked, mark_env
from tests.slurm.cluster.waiting import wait_until

# No exec after the line of output: during an exec the mark cannot be read.
PATIENT = "echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def mark() -> Iterator[str]:
    """Return a unique mark; kill remaining processes after a failed test."""
    value = f"test-{uuid.uuid4()}"
    yield value
    for pid in find_marked(value):
        os.kill(pid, signal.SIGKILL)


def start(script: str, mark_value: str | None = None) -> subprocess.Popen[str]:
    """Return a shell that runs the script, after its first line of output."""
    env = {"PATH": os.environ["PATH"], **(mark_env(mark_value) if mark_value else {})}
    process = subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_end_marked_finds_daemon(mark: str) -> None:
    parent = start("setsid sh -c 'sleep 300 >/dev/null 2>&1 & echo started'", mark)
    parent.wait(timeout=60)
    wait_until(lambda: len(find_marked(mark)) == 1, "the end of setsid")
    (daemon,) = find_marked(mark)
    assert daemon != parent.pid and os.getsid(daemon) != os.getsid(0)
    assert end_marked(mark, grace_s=30) == []
    assert not is_alive(daemon)


def test_end_marked_continues_stopped_process(mark: str, tmp_path: Path) -> None:
    note = tmp_path / "saved"
    # The shell writes it itself: a new child has the mark too, and may be ended before it acts.
    process = start(f"trap ': > {note}; exit 0' TERM; echo ready; while :; do sleep 0.05; done", mark)
    os.kill(process.pid, signal.SIGSTOP)
    assert end_marked(mark, grace_s=30) == []
    assert note.exists()


def test_end_marked_ends_late_children_and_those_ignoring_sigterm(mark: str) -> None:
    start("trap 'setsid sleep 300 & exit 0' TERM; echo ready; while :; do sleep 0.05; done", mark)
    end_marked(mark, grace_s=30)
    assert find_marked(mark) == []
    stubborn = start(STUBBORN, mark)
    assert stubborn.pid in end_marked(mark, grace_s=0.3)
    assert find_marked(mark) == []


def test_end_marked_spares_other_processes(mark: str) -> None:
    # Another value, the same text in another variable, and a longer value.
    neighbours = [start(f"echo ready; {MARK}=x exec sleep 300")]
    neighbours += [start(f"echo ready; OTHER='{MARK}={mark}' exec sleep 300")]
    neighbours += [start("echo ready; exec sleep 300", f"{mark}0")]
    start("echo ready; exec sleep 300", mark)
    end_marked(mark, grace_s=30)
    alive = [neighbour.poll() is None for neighbour in neighbours]
    for neighbour in neighbours:
        neighbour.kill()
        neighbour.wait()
    assert alive == [True] * 3


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_send_spares_reused_pid(mark: str, has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    innocent, ours = start(PATIENT), start(PATIENT, mark)
    assert not processes._send(innocent.pid, mark, signal.SIGKILL)
    assert processes._send(ours.pid, mark, signal.SIGKILL)
    assert ours.wait(timeout=60) == -signal.SIGKILL
    assert not processes._send(ours.pid, mark, signal.SIGKILL)
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_end_marked_reaps_all_but_children_of_caller(mark: str) -> None:
    zombie = start("echo ready", mark)
    wait_until(lambda: not is_alive(zombie.pid), "its end")
    assert find_marked(mark) == []
    child = start("echo ready; exec sleep 300", mark)
    end_marked(mark, grace_s=30)
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    zombie.wait()
    own = start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", mark)
    end_marked(mark, grace_s=30, own_children=[own.pid])
    assert own.wait() == 7


def test_end_marked_spares_this_process_and_ancestors(mark: str) -> None:
    code = (
        "import os; from slurm_rl.node.processes import *;"
        f"print(find_marked({mark!r}), end_marked({mark!r}, 1), flush=True)"
    )
    shell = f'"$0" -c "{code}"; echo the shell lives'
    env = {**os.environ, **mark_env(mark)}
    result = subprocess.run(["sh", "-c", shell, sys.executable], env=env, capture_output=True, text=True)
    assert result.stdout.splitlines() == ["[] []", "the shell lives"], result.stderr


def test_mark_survives_setproctitle(mark: str) -> None:
    pytest.importorskip("setproctitle")
    code = "import setproctitle as s, time; s.setproctitle('ray::IDLE'); print('ready', flush=True); time.sleep(300)"
    process = start(f'exec {sys.executable} -c "{code}"', mark)
    wait_until(lambda: find_marked(mark) == [process.pid], "the new title")
    end_marked(mark, grace_s=30)


def test_subreaper_adopts_and_reaps_daemon() -> None:
    code = """
import os, subprocess, time
from pathlib import Path
from slurm_rl.node.processes import *
become_subreaper()
subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], env={**os.environ, **mark_env("m")}, check=True)
while not (found := find_marked("m")): time.sleep(0.01)
parent = Path(f"/proc/{found[0]}/stat").read_text().split()[3]
end_marked("m", 5)
print(int(parent) == os.getpid(), Path(f"/proc/{found[0]}").exists())
""".replace('"m"', repr(str(uuid.uuid4())))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.split() == ["True", "False"], result.stderr


def test_die_with_parent_kills_child(mark: str) -> None:
    code = """
import functools, os, signal, subprocess, time
from slurm_rl.node.processes import *
end = functools.partial(die_with_parent, signal.SIGKILL, os.getpid())
print(subprocess.Popen(["sleep", "300"], preexec_fn=end).pid, flush=True)
time.sleep(300)
"""
    argv, env = [sys.executable, "-c", code], {**os.environ, **mark_env(mark)}
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(child), "its end")
    late = functools.partial(die_with_parent, signal.SIGKILL, 2**22)  # the parent has ended before the child starts
    assert subprocess.Popen(["sleep", "300"], preexec_fn=late).wait(timeout=60) == -signal.SIGKILL
