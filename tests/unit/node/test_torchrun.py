import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.errors import BringUpError, TrainingError
from slurm_rl.node import torchrun
from slurm_rl.node.processes import become_subreaper, find_marked, mark_env
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.node.torchrun import RankSignals, describe_torchrun_end, judge_torchrun, start_torchrun
from slurm_rl.plan.task import Rendezvous, TorchrunPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json
from tests.plans import plan_of
from tests.slurm.cluster.waiting import wait_until

# Output of torch 2.13.
LOG = """
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_10:00:01
  host      : n2
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 4242)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : n2
  rank      : 3 (local_rank: 1)
  exitcode  : {code} (pid: 4243)
  error_file: <N/A>
"""
PLAN = plan_of(python="/env/bin/python")
HEAD, OTHER = NodeRole(0, 2, "7"), NodeRole(1, 2, "7")

# A fake torchrun: two children, with or without a signal handler.
RANK = """
import os, signal, sys, time
if sys.argv[1] == "handles":
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(open(sys.argv[2], "a").write("saved\\n") and 0))
os.write(1, b"up\\n")
time.sleep(60)
"""
PARENT = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]]) for _ in range(2)]
[rank.wait() for rank in ranks]
"""


@pytest.mark.parametrize(
    ("code", "expected"), [("-9", "rank 3 was killed by SIGKILL"), ("2", "rank 3 ended with exit status 2")]
)
def test_describe_torchrun_end_names_first_failure(tmp_path: Path, code: str, expected: str) -> None:
    log = tmp_path / "driver.log"
    log.write_text(LOG.format(code=code))
    assert describe_torchrun_end(log, 1).startswith(expected)
    log.write_text("torchrun: error: no such option")
    assert describe_torchrun_end(log, 2) == "torchrun ended with exit status 2"


FAILED, SAVED = {"outcome": "failed", "exit_code": 1}, {"outcome": "checkpointed", "exit_code": 75}


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = RunDir(tmp_path).attempt(1)
    found.logs.mkdir(parents=True)
    return found


@pytest.mark.parametrize(
    ("role", "code", "outcome", "is_late", "status"),
    [
        (HEAD, "", SAVED, False, 75),
        (HEAD, "1", {"outcome": "failed", "exit_code": 2}, False, 2),
        (OTHER, "", SAVED, False, 0),
        (OTHER, "1", FAILED, True, 0),
        (OTHER, "-15", FAILED, True, 0),
        (HEAD, "-9", FAILED, False, "rank 3 was killed by SIGKILL"),
        (OTHER, "-9", FAILED, True, "rank 3 was killed by SIGKILL"),
        (OTHER, "1", FAILED, False, "rank 3 ended with exit status 1 [torchrun-1.log]"),
        (HEAD, "", None, False, "rank 0 must report how"),
    ],
)
def test_judge_torchrun_returns_status_or_names_failed_rank(
    attempt: AttemptDir, role: NodeRole, code: str, outcome: object, is_late: bool, status: int | str
) -> None:
    attempt.log("driver" if role.is_head else "torchrun-1").write_text(LOG.format(code=code) if code else "")
    if outcome is not None:
        write_json(attempt.outcome, outcome)
    if isinstance(status, int):
        assert judge_torchrun(PLAN, attempt, role, 1 if code else 0, is_late=is_late) == status
    else:
        with pytest.raises(TrainingError, match=re.escape(status)):
            judge_torchrun(PLAN, attempt, role, 1 if code else 0, is_late=is_late)


def test_judge_torchrun_names_python_without_torch(attempt: AttemptDir) -> None:
    words = "Error while finding module specification for 'torch.distributed.run'"
    attempt.log("driver").write_text(f"{words} (ModuleNotFoundError: No module named 'torch')\n")
    with pytest.raises(BringUpError, match=r"/env/bin/python must have.*No module named 'torch'.*set cluster.python"):
        judge_torchrun(PLAN, attempt, HEAD, 1)


def start_ranks(mark: str, kind: str, saved: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, **mark_env(mark)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, RANK, kind, str(saved)], env=env, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert [parent.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
    return parent


def test_rank_signals_reach_each_rank_once(tmp_path: Path) -> None:
    mark, saved = f"t{os.getpid()}:1:0:/x", tmp_path / "saved"
    with start_ranks(mark, "handles", saved) as torchrun:
        signals = RankSignals(mark, 2)
        signals.send(torchrun, time.monotonic())
        assert signals.is_done
        assert torchrun.wait(timeout=120) == 0, "SIGUSR2 would have killed it"
    assert saved.read_text() == "saved\n" * 2
    assert find_marked(mark) == []


def test_rank_signals_terminate_ranks_without_handler(tmp_path: Path) -> None:
    mark = f"d{os.getpid()}:1:0:/x"
    with start_ranks(mark, "deaf", tmp_path / "saved") as torchrun:
        signals = RankSignals(mark, 2)
        signals.send(torchrun, time.monotonic())
        assert not signals.is_done and len(find_marked(mark)) == 3
        signals.send(torchrun, time.monotonic() - 60)
        assert signals.is_done
        assert torchrun.wait(timeout=120) == -signal.SIGTERM
        for pid in find_marked(mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("code", "expected"), [("75", 0), ("None", 0), ("3", 3), ("'why'", 1)])
def test_rank_maps_saved_exit_to_success(code: str, expected: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"import sys; print(sys.argv[1:], __name__); sys.exit({code})")
    argv = [sys.executable, "-m", "slurm_rl.node.rank", str(script), "one", "two"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.stdout == "['one', 'two'] __main__\n"
    assert done.returncode == expected


def test_rank_dies_with_torchrun(tmp_path: Path) -> None:
    become_subreaper()
    script = tmp_path / "program.py"
    script.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    argv = [sys.executable, "-m", "slurm_rl.node.rank", str(script)]
    body = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", body, *argv], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")


@pytest.mark.parametrize(("num_threads", "expected"), [(None, "4"), (3, "3")])
def test_start_torchrun_shares_cores(
    num_threads: int | None, expected: str, attempt: AttemptDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    monkeypatch.setattr(torchrun, "start_child", lambda argv, env, *rest: seen.append(dict(env)))
    plan = replace(PLAN, torchrun=TorchrunPlan(2, num_threads))
    start_torchrun(plan, attempt, HEAD, Rendezvous("n1", 29400, 10.0), {"PATH": "/bin"})
    assert seen == [{"PATH": "/bin", "OMP_NUM_THREADS": expected}]
