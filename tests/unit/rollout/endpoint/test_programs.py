import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slurm_rl.node.processes import MARK, all_pids
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.endpoint.programs import (
    EPISODE,
    Verdict,
    build_environment,
    end_strays,
    find_argv,
    parse_verdict,
    run_program,
)
from slurm_rl.rollout.endpoint.residents import Resident
from tests.slurm.cluster.waiting import wait_until

ROW = {"prompt": "3+4=", "answer": "7"}
LONG_S = 300.0


def run(code: str, tmp_path: Path, *, timeout_s: float = LONG_S, stop: threading.Event | None = None) -> object:
    env = build_environment(os.environ, "http://127.0.0.1:1/v1", "key", f"of {tmp_path}")
    return run_program([sys.executable, "-c", code], env, ROW, timeout_s, stop or threading.Event())


def test_program_reads_row_and_reports_reward(tmp_path: Path) -> None:
    code = """
import json, os, sys
row = json.load(sys.stdin)
assert os.environ["OPENAI_API_KEY"] == "key" and os.environ["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
assert "127.0.0.1" in os.environ["no_proxy"]
print("thinking"); print(json.dumps({"reward": float(row["answer"]), "scores": {"turns": 2}})); print("bye")
"""
    assert run(code, tmp_path) == Verdict(7.0, {"turns": 2.0})


def test_excess_output_is_dropped(tmp_path: Path) -> None:
    code = "import sys\nfor _ in range(300): sys.stdout.write('x' * 99999); sys.stderr.write('y' * 99999)\n"
    assert run(f"{code}\nprint('\\n{{\"reward\": 2}}')", tmp_path) == Verdict(2.0)


@pytest.mark.parametrize(
    ("code", "cause", "told"),
    [
        ("raise SystemExit(3)", "exception", "exit code 3"),
        ("import nowhere", "exception", "ModuleNotFoundError"),
        ("import os; os.abort()", "crash", "SIGABRT"),
        ('print(\'{"reward": "much"}\')', "bad score", "finite number; got str 'much'"),
        ("print('{\"reward\": Infinity}')", "bad score", "finite number"),
        ("import os; os.kill(os.getpid(), 40)", "crash", "died of signal 40"),
        ('print(\'{"reward": 1, "scores": {"a": "b"}}\')', "bad score", "scores must be finite"),
    ],
)
def test_program_failures_have_causes(code: str, cause: str, told: str, tmp_path: Path) -> None:
    found = run(code, tmp_path)
    assert isinstance(found, Failure) and found.cause == cause and told in found.detail


def test_missing_program_is_named(tmp_path: Path) -> None:
    found = run_program([str(tmp_path / "nobody")], {}, ROW, LONG_S, threading.Event())
    assert isinstance(found, Failure) and "cannot be started" in found.detail


def test_hanging_program_is_ended_with_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
open({str(note)!r}, "w").write(str(child.pid))
time.sleep(3600)
"""
    stop, ended = threading.Event(), []
    thread = threading.Thread(target=lambda: ended.append(run(code, tmp_path, stop=stop)))
    thread.start()
    wait_until(lambda: note.is_file() and note.read_text(), "the child", timeout_s=LONG_S)
    stop.set()
    thread.join(LONG_S)
    assert isinstance(ended[0], Failure) and ended[0].cause == "hang"
    wait_until(lambda: is_gone(int(note.read_text())), "the end of the child", timeout_s=LONG_S)


def test_deadline_is_shared(tmp_path: Path) -> None:
    found = run("import time; time.sleep(3600)", tmp_path, timeout_s=0.2)
    assert found == Failure("hang", "the program had not ended after 0.2 s")


def test_child_that_holds_output_does_not_block(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    assert run(f"{code}\nprint('{{\"reward\": 1}}')", tmp_path) == Verdict(1.0)


def test_process_in_own_session_is_found_by_episode(tmp_path: Path) -> None:
    env = {**os.environ, EPISODE: f"of {tmp_path}", MARK: "7:1:0:/runs/a"}
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env=env, start_new_session=True)
    environ_file = Path(f"/proc/{stray.pid}/environ")
    wait_until(lambda: EPISODE.encode() in environ_file.read_bytes(), "the mark", timeout_s=LONG_S)
    # A parallel run with the same seed has episodes with equal names.
    for environ in ({}, {MARK: "7:2:0:/runs/a"}, {MARK: "7:1:0:/runs/b"}):
        assert end_strays([f"of {tmp_path}"], environ) == []
    assert end_strays(["another"], env) == [] and end_strays([f"of {tmp_path}"], env) == [stray.pid]
    assert stray.wait(LONG_S) < 0


def test_secrets_and_code_of_run_are_not_inherited() -> None:
    environ = {
        "SLURM_RL_TOKEN": "a",
        "SLURM_RL_REWARD_TOKEN": "b",
        "PYTHONPATH": "/code",
        "PYTHONSAFEPATH": "1",
        "A": "1",
    }
    env = build_environment(environ, "url", "key", "3.0")
    assert set(env) == {"A", "PATH", "NO_PROXY", "no_proxy", "OPENAI_BASE_URL", "OPENAI_API_KEY", EPISODE}
    assert "key" not in " ".join(find_argv(["python", "agent.py"]))


@pytest.mark.parametrize("printed", ["", "{", '{"a": 1}', "{" * 100_000, '[{"reward": 1}]', '"reward"'])
def test_other_output_lines_are_ignored(printed: str) -> None:
    assert parse_verdict(printed) == Verdict()
    assert parse_verdict(f"{json.dumps({'reward': 0.5})}\n{printed}\n") == Verdict(0.5)


def is_gone(pid: int) -> bool:
    try:
        return pid not in all_pids() or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


LONG_S = 300.0
LAST_WORDS = "import sys; sys.exit('no such world')"


def test_last_output_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Resident._listen_to_errors

    def read_late(resident: Resident) -> None:
        time.sleep(0.5)  # on a busy machine the process may exit before the reader thread runs
        read(resident)

    monkeypatch.setattr(Resident, "_listen_to_errors", read_late)
    resident = Resident([sys.executable, "-c", LAST_WORDS], os.environ)
    outcome = resident.play("0", {"episode": "0"}, LONG_S, threading.Event())
    resident.end()
    assert isinstance(outcome, Failure) and outcome.cause == "exception" and "no such world" in outcome.detail


def test_later_callers_get_same_error() -> None:
    resident = Resident([sys.executable, "-c", LAST_WORDS], os.environ)
    first, second = (resident.play(name, {"episode": name}, LONG_S, threading.Event()) for name in "01")
    resident.end()
    assert isinstance(first, Failure) and second == first
