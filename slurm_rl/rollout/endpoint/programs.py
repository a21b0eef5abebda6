"""Agent programs, one process per episode: started with two variables, and ended with all child processes.

    OPENAI_BASE_URL=http://127.0.0.1:41833/v1  OPENAI_API_KEY=<key of the episode>  python agent.py  < row as JSON

The last line `{"reward": 1.0}` of its output is the reward; without one, `reward` of the config scores the last reply.
Other output is shown if it fails.
"""

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.config.user_files.load import find_file, is_file
from slurm_rl.node.driver import name_signal
from slurm_rl.node.processes import MARK, all_pids
from slurm_rl.rewards.results import Failure
from slurm_rl.rewards.service import TOKEN_VARIABLE as REWARD_TOKEN
from slurm_rl.rewards.values import read_number, read_numbers
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE

EPISODE = "SLURM_RL_EPISODE"
"""Environment variable with the name of the episode; child processes inherit it."""
ADAPTER, ADAPTERS = "adapter:", Path(__file__).parent / "adapters"
"""`adapter:NAME` in a command means the file play_NAME.py there."""
_KEPT_BYTES = 256_000
"""Number of bytes kept from the end of a program's output."""
_SHOWN_CHARS = 400
_POLL_S = 0.2
_READ = 65536
_OURS = ("PYTHONSAFEPATH", "PYTHONPATH", TOKEN_VARIABLE, REWARD_TOKEN)


@dataclass(frozen=True)
class Verdict:
    """Result that a program reports."""

    reward: float | None = None
    """None: no reward reported."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the metrics, by name."""


def find_argv(program: Sequence[str]) -> list[str]:
    """Return the command, with the run's copies of Python files and the paths of our adapters."""
    return [_find_word(word) for word in program]


def _find_word(word: str) -> str:
    if word.startswith(ADAPTER):
        return str(ADAPTERS / f"play_{word.removeprefix(ADAPTER)}.py")
    if word.endswith(".py"):
        return str(find_file(f"{word}:main"))
    return f"{find_file(word)}:{word.rpartition(':')[2]}" if is_file(word) else word


def find_version(argv: Sequence[str]) -> str:
    """Return a hash of the command, with the bytes of Python files in place of their paths."""
    found = hashlib.sha256()
    for word in argv:
        file = Path(word if word.endswith(".py") else word.rpartition(":")[0])
        found.update(file.read_bytes() if file.suffix == ".py" and file.is_file() else word.encode())
        found.update(b"\0")
    return found.hexdigest()[:16]


def build_environment(environ: Mapping[str, str], url: str, key: str, episode: str) -> dict[str, str]:
    """Return the trainer's environment without secrets and code paths, plus the program's variables.

    `python` is the trainer's unless the command names another.
    """
    env = {name: value for name, value in environ.items() if name not in _OURS}
    here = str(Path(sys.executable).parent)
    around = {name: env.get(name, "") for name in ("NO_PROXY", "no_proxy")}
    return {
        **env,
        "PATH": f"{here}{os.pathsep}{env.get('PATH', os.defpath)}",
        **{name: ",".join(filter(None, [value, "127.0.0.1"])) for name, value in around.items()},
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        EPISODE: episode,
    }


def start_program(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that its children can be killed with it; may raise OSError."""
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=dict(env), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


def run_program(
    argv: Sequence[str], env: Mapping[str, str], row: Mapping[str, Any], timeout_s: float, stop: threading.Event
) -> Verdict | Failure:
    """Run a program to its end or the deadline, and kill its session.

    Args:
        row: written to standard input, as JSON.
        stop: ends the program early.
    """
    try:
        process = start_program(argv, env)
    except OSError as error:
        return Failure("exception", f"{argv[0]} cannot be started: {error.strerror}")
    try:
        deadline = time.monotonic() + timeout_s

        def is_over() -> bool:
            return stop.is_set() or time.monotonic() > deadline

        printed, is_late = _listen(process, json.dumps(row).encode() + b"\n", is_over)
    finally:
        end_session(process)
        close_pipes(process)
    if is_late:
        return Failure("hang", f"the program had not ended after {timeout_s:g} s{_tell(printed[1])}")
    if process.returncode != 0:
        return describe_end(process.returncode, printed[1])
    return parse_verdict(printed[0].decode("utf-8", "replace"))


def _listen(process: subprocess.Popen[bytes], row: bytes, is_over: Callable[[], bool]) -> tuple[list[bytes], bool]:
    """Return the last bytes of stdout and stderr, and whether the program was late."""
    assert process.stdin and process.stdout and process.stderr
    pipes, printed = [process.stdout, process.stderr], [b"", b""]
    with selectors.DefaultSelector() as waiting:
        for place, pipe in enumerate(pipes):
            os.set_blocking(pipe.fileno(), False)
            waiting.register(pipe, selectors.EVENT_READ, place)
        os.set_blocking(process.stdin.fileno(), False)
        waiting.register(process.stdin, selectors.EVENT_WRITE, None)
        while not (ended := _has_ended(process)) and not is_over():
            for key, _ in waiting.select(_POLL_S if len(waiting.get_map()) else _POLL_S / 4):
                if key.data is None:
                    row = _write(process.stdin, row)
                    if not row:
                        waiting.unregister(process.stdin)
                        process.stdin.close()
                elif not _read(pipes[key.data], printed, key.data):
                    waiting.unregister(key.fileobj)
        # The last output; a child process may write forever.
        for place, pipe in enumerate(pipes):
            for _ in range(_KEPT_BYTES // _READ + 1):
                _read(pipe, printed, place)
    return printed, not ended


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Poll without reaping, so that the pid is not reused."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(pipe: Any, printed: list[bytes], place: int) -> bool:
    """Read available output; return False if there is none."""
    try:
        data = os.read(pipe.fileno(), _READ)
    except BlockingIOError:
        return False
    printed[place] = (printed[place] + data)[-_KEPT_BYTES:]
    return bool(data)


def _write(pipe: Any, data: bytes) -> bytes:
    """Return the unwritten rest; empty if the program closed its input."""
    try:
        return data[os.write(pipe.fileno(), data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return b""


def describe_end(status: int, errors: bytes) -> Failure:
    """Return the failure for an exit code (negative: signal), with the end of the output."""
    if status < 0:
        return Failure("crash", f"the program died of {name_signal(-status)}{_tell(errors)}")
    return Failure("exception", f"the program ended with exit code {status}{_tell(errors)}")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the session, before the process is reaped and its pid may be reused."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def end_strays(episodes: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """Kill child processes that left the session of their program; return them.

    Args:
        environ: environment of this process; processes with the mark of another attempt are ignored.
    """
    wanted, own = {f"{EPISODE}={name}".encode() for name in episodes}, environ.get(MARK)
    found = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            theirs = set(Path("/proc", str(pid), "environ").read_bytes().split(b"\0"))
            marks = {entry for entry in theirs if entry.startswith(f"{MARK}=".encode())}
            if wanted & theirs and marks == ({f"{MARK}={own}".encode()} if own is not None else set()):
                os.kill(pid, signal.SIGKILL)
                found.append(pid)
    return found


def parse_verdict(printed: str) -> Verdict | Failure:
    """Parse the last line that is a JSON object with a reward.

    >>> parse_verdict('thinking\\n{"reward": 1, "scores": {"turns": 2}}\\n')
    Verdict(reward=1.0, scores={'turns': 2.0})
    >>> parse_verdict('{"reward": NaN}')
    Failure(cause='bad score', detail='a reward must be a finite number; got nan')
    """
    for line in reversed(printed.splitlines()):
        try:
            tree = json.loads(line) if line.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(tree, dict) and "reward" in tree:
            return read_verdict(tree)
    return Verdict()


def read_verdict(tree: Mapping[str, Any]) -> Verdict | Failure:
    """Return the verdict of a JSON object with `reward` and optional `scores`."""
    reward = tree.get("reward")
    try:
        said = None if reward is None else read_number(reward)
    except ValueError as error:
        return Failure("bad score", f"a reward must be a finite number; got {error}")
    try:
        return Verdict(said, read_numbers(tree.get("scores") or {}))
    except ValueError as error:
        return Failure("bad score", f"scores must be finite numbers by name; got {error}")


def _tell(errors: bytes) -> str:
    text = errors.decode("utf-8", "replace").strip()
    return f"; it wrote {text[-_SHOWN_CHARS:]!r}" if text else ""
