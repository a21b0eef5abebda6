import subprocess
import sys
from pathlib import Path

from slurm_rl.launch.controller.supervisor import EXIT_KILLED

# A separate process: a supervisor forks, installs signal handlers and reaps its descendants.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from slurm_rl.launch.controller.supervisor import STOP_SIGNALS, Supervisor

tell = lambda how: print(how, flush=True)

def work():
    with open("starts", "a") as file:
        file.write("x")
    {work}

print(Supervisor(work, Path(), patience_s=5, on_death=tell, on_hang=tell, clean_up=int, steady_s={steady_s}).main())
"""
ORPHAN = "import os, time; time.sleep(0.5); open('orphan', 'w').write('left')"


def supervise(folder: Path, work: str, steady_s: float = 60.0) -> list[str]:
    program = PROGRAM.format(work=work.replace("\n", "\n    "), steady_s=steady_s)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    return done.stdout.split()


def test_killed_child_restarts_after_its_orphans_end(tmp_path: Path) -> None:
    work = f"""if os.path.exists("orphan"):
    return 3
import subprocess
subprocess.Popen([sys.executable, "-c", {ORPHAN!r}])
os.kill(os.getpid(), signal.SIGKILL)"""
    assert supervise(tmp_path, work) == ["SIGKILL", "3"]
    assert (tmp_path / "starts").read_text() == "xx"


def test_repeatedly_killed_child_is_given_up(tmp_path: Path) -> None:
    assert supervise(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") == [*["SIGKILL"] * 4, str(EXIT_KILLED)]
    assert (tmp_path / "starts").read_text() == "xxxx"


def test_steady_child_may_be_killed_more_often(tmp_path: Path) -> None:
    work = """if len(Path("starts").read_text()) > 6:
    return 3
os.kill(os.getpid(), signal.SIGKILL)"""
    assert supervise(tmp_path, work, steady_s=0.0) == [*["SIGKILL"] * 6, "3"]


def test_signal_waits_until_child_handles_it(tmp_path: Path) -> None:
    """The signal arrives before the handler exists; the default action would kill."""
    work = """os.kill(os.getppid(), signal.SIGUSR2)
time.sleep(0.3)
heard = []
signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
deadline = time.monotonic() + 60
while not heard and time.monotonic() < deadline:
    time.sleep(0.01)
return heard[0]"""
    assert supervise(tmp_path, work) == ["12"]
