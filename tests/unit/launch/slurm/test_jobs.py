import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_rl.errors import RunDirError, SlurmRLError
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.jobs import cancel_runs, read_states
from slurm_rl.launch.slurm import commands, srun
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.srun import AgentsStep, find_unreachable, wait_for_answers
from slurm_rl.launch.slurm.states import JobState
from slurm_rl.node.cleaning import DONE
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json
from tests.plans import plan_of

NOBODY = str(2**22)
"""A number above the largest possible process id (proc(5), pid_max)."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.mark.parametrize("launcher", ["local", "manual"])
def test_run_of_other_machine_is_not_dead_but_may_have_ended(run: RunDir, launcher: str) -> None:
    record_job(run, launcher, NOBODY, host="elsewhere")
    (state,) = read_states([run])
    assert str(state) == "unknown: its controller is a process of elsewhere; ask there"
    with pytest.raises(RunDirError, match=r"it was started on elsewhere\. Next: there: python -m slurm_rl cancel"):
        cancel_runs([run])
    write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 3})
    assert [state.word for state in read_states([run])] == ["finished"]
    assert not cancel_runs([run])


def test_ended_local_controller_is_dead(run: RunDir) -> None:
    record_job(run, "local", NOBODY, host=socket.gethostname())
    assert [state.word for state in read_states([run])] == ["dead"]
    assert not cancel_runs([run])


def test_written_end_overrides_slurm_state(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id of an array element, 12_0, differs from the ids of its attempts."""
    record_job(run, "slurm", "12_0")
    write_json(run.end, {"state": "interrupted", "exit_code": 130, "cause": "cancelled", "step": 3})
    run.submitit.mkdir()
    (run.submitit / "12_0_0_log.out").write_text("slurm_rl: interrupted\n")
    failed = JobInfo("12_0", JobState.FAILED, "FAILED", "NonZeroExitCode", "n1", None, None)
    monkeypatch.setattr(commands, "query_jobs", lambda ids: {"12_0": failed})
    before = run.end.read_bytes()
    assert str(read_states([run])[0]) == "interrupted: cancelled"
    assert run.end.read_bytes() == before


def network(silences: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `n1` accept, `n2` refuse, and `n3` time out `silences` times; return the list of tries."""
    tries: list[str] = []

    def create_connection(address: tuple[str, int], timeout: float) -> socket.socket:
        tries.append(address[0])
        if address[0] == "n2":
            raise ConnectionRefusedError
        if address[0] == "n3" and tries.count("n3") <= silences:
            raise TimeoutError
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return tries


ASKED = {host: (host, 6818) for host in ("n1", "n2", "n3")}


def test_wait_for_answers_waits_for_returning_node_until_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = network(2, monkeypatch)
    assert wait_for_answers(ASKED, 600.0) == []
    assert sorted(tries) == ["n1", "n2", "n3", "n3", "n3"]
    network(10**9, monkeypatch)
    assert wait_for_answers(ASKED, 0.0) == ["n3"]


def test_find_unreachable_uses_addresses_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = network(10**9, monkeypatch)
    monkeypatch.setattr(srun, "run_slurm", lambda argv: "a1 n1\na2 n3\na2 n3\n")
    monkeypatch.setattr(srun, "slurmd_port", lambda: 6818)
    # a3 is unknown to Slurm.
    assert find_unreachable(["a1", "a2", "a3"], 0.0) == ["a2"]
    assert set(tries) == {"n1", "n3"}


# The srun that waits for the agent of a lost node is ended after all others, and no other srun is.
QUICK_S, LONG_S = 0.1, 120.0


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = RunDir(tmp_path / "run").attempt(1)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def note(attempt: AttemptDir, *states: str) -> None:
    for rank, state in enumerate(states):
        write_json(attempt.node(rank), {"host": f"n{rank}", "rank": rank, "state": state})


def test_last_agent_ends_step(attempt: AttemptDir, waiting: subprocess.Popen[bytes]) -> None:
    note(attempt, "ended", "ended", "running")
    step = AgentsStep(waiting, attempt, 3, patience_s=QUICK_S)
    assert comes_true(lambda: step.poll() is not None, LONG_S)
    assert step.returncode == -signal.SIGKILL


@pytest.mark.parametrize("states", [("running", "ended"), ("ending", "running"), ("ended", "ended"), ()])
def test_ending_agent_ends_step(attempt: AttemptDir, waiting: subprocess.Popen[bytes], states: tuple[str, ...]) -> None:
    """All run while the head runs; an srun exits soon after its last agent."""
    note(attempt, *states)
    step = AgentsStep(waiting, attempt, 2, patience_s=QUICK_S)
    assert not comes_true(lambda: step.poll() is not None, 10 * QUICK_S)
    waiting.kill()
    assert comes_true(lambda: step.poll() is not None, LONG_S)


# Cleanup after an attempt covers nodes with a running agent; no srun may name a lost node.
HOSTS = ["a1", "a2", "a3"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the argument lists of all sruns; each named node answers."""
    found: list[list[str]] = []

    def run_srun(argv: list[str], env: object, deadline_s: float) -> tuple[str, str]:
        found.append(argv)
        [named] = [word for word in argv if word.startswith("--nodelist=")]
        return "".join(f"{DONE}{host}\n" for host in named.partition("=")[2].split(",")), ""

    monkeypatch.setattr(srun, "run_srun", run_srun)
    return found


def refuse() -> set[str]:
    raise SlurmRLError("Slurm must answer")


@pytest.mark.parametrize(
    ("down", "unreachable", "ended", "found", "named"),
    [
        # Since Slurm 23.02, an srun that names a node that is down starts nowhere.
        (lambda: {"a3"}, [], [0], ["a3"], "a2"),
        # Slurm has not noticed the loss yet; an srun that names the node would wait for half a minute.
        (set, ["a2"], [0], ["a2"], "a3"),
        (lambda: set(HOSTS), [], [0, 1], ["a3"], None),
        (refuse, [], [], [], "a1,a2,a3"),
    ],
)
def test_clean_nodes_names_only_responding_nodes(
    run: RunDir,
    attempt: AttemptDir,
    asked: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    down: Callable[[], set[str]],
    unreachable: list[str],
    ended: list[int],
    found: list[str],
    named: str | None,
) -> None:
    monkeypatch.setattr(srun, "nodes_down", down)
    monkeypatch.setattr(srun, "find_unreachable", lambda hosts, within_s: unreachable)
    for rank in ended:
        write_json(attempt.node(rank), {"host": HOSTS[rank], "rank": rank, "state": "ended"})
    plan = plan_of("+cluster=slurm_cpu", run_dir=run.path)
    assert srun.clean_nodes(run, plan, attempt, HOSTS, "7", {}) == found
    lists = [word for argv in asked for word in argv if word.startswith("--nodelist=")]
    assert lists == ([f"--nodelist={named}"] if named else [])
    assert read_rows(run.events)[-1]["hosts"] == [host for rank, host in enumerate(HOSTS) if rank not in ended]
