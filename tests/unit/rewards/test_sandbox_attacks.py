"""Attacks by hostile code. Each one is first shown to work without the sandbox, on harmless targets."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from slurm_rl.errors import RewardError
from slurm_rl.rewards.sandbox import process
from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import Finished, probe_sandbox, run_program
from tests.unit.rewards.reward_pool_kit import outlive_killed

LIMITS = Limits(wall_s=20.0, memory_bytes=256 << 20, output_bytes=1 << 20)
SHORT = replace(LIMITS, wall_s=0.5)

PARENT = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
ACTS = {
    "read a key": "done = 'canary' in open(SECRET).read()",
    "read the token named in the environment": "done = 'canary' in open(os.environ['RAY_AUTH_TOKEN_PATH']).read()",
    "read the environment of the parent": "done = b'PATH=' in open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "read the memory of the parent": "done = open(f'/proc/{os.getppid()}/mem', 'rb', 0) is not None",
    "list the home": "done = os.listdir(os.path.dirname(SECRET)) != []",
    "write into a checkpoint": "done = open(TARGET, 'ab').write(b'x')",
    "truncate a checkpoint": "os.truncate(TARGET, 0); done = True",
    "remove a checkpoint": "os.rename(TARGET, TARGET + '2'); os.rename(TARGET + '2', TARGET); done = True",
    "open up a checkpoint": "os.chmod(TARGET, 0o777); done = True",
    "change the times of a checkpoint": "os.utime(TARGET, (0, 0)); done = True",
    "link a secret into the temp folder": "os.symlink(SECRET, 'link'); os.unlink('link'); done = True",
    "leave a file in the temp folder": "open('left', 'w').close(); os.unlink('left'); done = True",
    "connect to a service": "done = socket.create_connection(('127.0.0.1', PORT), 1) is not None",
    "send by UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT)); done = True",
    "send to a local socket by a pair": (
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', SOCKET); done = True"
    ),
    "signal another process": "os.kill(VICTIM, 0); done = True",
    "signal the parent": "os.kill(os.getppid(), 0); done = True",
    "signal by a pipe": "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, VICTIM); done = True",
    "limit another process": "resource.prlimit(VICTIM, resource.RLIMIT_CORE); done = True",
    "slow another process down": "os.setpriority(os.PRIO_PROCESS, VICTIM, 5); done = True",
    "start a process": "done = os.fork() or os._exit(0)",
    "become another program": "os.execv(sys.executable, [sys.executable, '-c', 'print(\"it worked\")'])",
    "run a shell": "done = os.system('exit 0') == 0",
    "hide in a new session": "os.setpgid(0, 0) if os.getsid(0) != os.getpid() else os.setsid(); done = True",
    "hold memory outside of it": "done = os.memfd_create('x')",
    "trace the parent": "done = ctypes.CDLL(None).ptrace(0x4206, VICTIM, 0, 0) == 0",
    "take a descriptor of the parent": "done = libc(434, os.getppid(), 0) >= 0",
    "use io_uring": "done = libc(425, 4, ctypes.create_string_buffer(120)) >= 0",
    "leave shared memory behind": "done = libc(29, 0, 4096, 0o600) >= 0",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_NOFILE, (4000, 4000)); done = True",
    "outlive the parent": "done = ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0",
}

NOT_HERE = ("leave shared memory behind", "use io_uring")
"""Attacks that would leave traces on this machine, or are disabled on many."""

FRAME = """
import ctypes, fcntl, os, resource, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True).syscall
try:
    {act}
except (OSError, KeyError, ValueError):
    done = False
print("it worked" if done else "refused")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Return a folder with targets: secrets, a checkpoint, sockets, a process."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "secret").write_text("canary")
    (folder / "checkpoint").write_bytes(b"weights")
    local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = f"/tmp/slurm-rl-test-{os.getpid()}"
    local.bind(path)
    with (
        local,
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
    ):
        yield {
            "SECRET": str(folder / "secret"),
            "TARGET": str(folder / "checkpoint"),
            "SOCKET": path,
            "PORT": server.getsockname()[1],
            "VICTIM": victim.pid,
        }
        assert victim.poll() is None
        victim.kill()
    Path(path).unlink()


def build(act: str, place: dict[str, object]) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in place.items()) + FRAME.format(act=act)


def run(source: str, limits: Limits = LIMITS, stdin: bytes = b"") -> Finished:
    return run_program(source, stdin, limits, time.monotonic() + 30)


def skip_if_disallowed(error: RewardError) -> NoReturn:
    """Some machines have no unprivileged namespaces."""
    if "not allowed here" not in str(error):
        raise error
    pytest.skip(str(error))


@pytest.mark.parametrize("landlock", [True, False], ids=["landlock", "namespaces"])
@pytest.mark.parametrize("name", ACTS)
def test_attack_that_works_outside_is_refused_inside(
    name: str, landlock: bool, place: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(place["SECRET"]))
    monkeypatch.setattr(process, "USE_LANDLOCK", landlock)
    source = build(ACTS[name], place)
    try:
        done = run(source)
    except RewardError as error:
        skip_if_disallowed(error)
    assert landlock or done.confined["files"] == "namespaces"
    assert (done.end, done.stdout.decode().split()[-1:]) == ("exit", ["refused"]), done.stderr
    if landlock and name not in NOT_HERE:
        # The parent's environment must be readable; pytest workers overwrite theirs with a process title.
        argv = [sys.executable, "-c", PARENT, sys.executable, "-c", source]
        plain = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert "it worked" in plain.stdout, plain.stderr


def test_probe_holds_also_without_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "USE_LANDLOCK", False)
    try:
        assert probe_sandbox()["files"] == "namespaces"
    except RewardError as error:
        skip_if_disallowed(error)


FLOODS = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "deadline"),
    "endless loop": ("while 1: pass", "deadline"),
    "endless sleep": ("import time\ntime.sleep(1000)", "deadline"),
    "ignored signals": (
        "import signal\nfor s in {*range(1, 32)} - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile 1: pass",
        "deadline",
    ),
    "stopped by itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "deadline"),
    "closed pipes": ("import os, time\nos.close(1); os.close(2)\ntime.sleep(1000)", "deadline"),
    "much output": ("while 1: print('x' * 100000)", "output"),
    "much error output": ("import sys\nwhile 1: sys.stderr.write('x' * 100000)", "exit"),
    "huge power": ("9**9**9", "deadline"),
    "catastrophic expression": ("import re\nre.match(r'(a+)+$', 'a' * 100 + 'b')", "deadline"),
    "threads without end": ("import _thread, time\nwhile 1: _thread.start_new_thread(time.sleep, (99,))", None),
}


@pytest.mark.parametrize("name", FLOODS)
def test_waste_ends_at_deadline_and_leaves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source, end = FLOODS[name]
    before = set(psutil.Process().children(recursive=True))
    started = time.monotonic()
    done = run(source, SHORT)
    assert time.monotonic() - started < 100
    assert end is None or done.end == end
    assert not (done.end == "exit" and done.exit_code == 0)
    assert len(done.stdout) <= LIMITS.output_bytes
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("source", ["x = 'x' * (1 << 30)", "x = []\nwhile 1: x.append(bytearray(1 << 20))"])
def test_memory_over_limit_is_error_of_code(source: str) -> None:
    done = run(source)
    assert done.exit_code == 1
    assert b"MemoryError" in done.stderr


def test_unread_and_closed_input_do_not_hang() -> None:
    much = b"x" * (4 << 20)
    assert run("print('fine')", stdin=much).stdout == b"fine\n"
    assert run("import os, sys\nos.close(0)\nprint('fine')", stdin=much).stdout == b"fine\n"


def test_sandbox_inherits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    source = """
import os, sys
def alive(fd):
    try: return os.fstat(fd) is not None
    except OSError: return False
print([fd for fd in range(64) if alive(fd)], sorted(os.environ), os.listdir("."), sys.argv)
"""
    words = run(source).stdout.decode()
    assert words == "[0, 1, 2] ['HOME', 'LANG', 'PYTHONHASHSEED', 'PYTHONUTF8', 'TMPDIR'] [] ['solution.py']\n"


LONG_RUN = """
import time
from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import run_program
limits = Limits(wall_s=60, memory_bytes=1 << 28, output_bytes=1000)
print("up", flush=True)
run_program("import time; time.sleep(60)", b"", limits, time.monotonic() + 60)
"""


def test_sandbox_dies_with_parent(tmp_path: Path) -> None:
    assert outlive_killed(LONG_RUN, tmp_path) == []
