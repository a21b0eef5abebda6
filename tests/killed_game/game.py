"""A real run of examples/guessing_game (Ray, vLLM, torch on CPU): started, held in a turn, killed and gone on with."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.run_dir.run_dir import RunDir, write_text
from tests.examples.kit import EXAMPLES, HERE, ROOT
from tests.tiny_models import shrink
from tests.whole_run import command_line, find_processes

TIMEOUT_S = 600.0
_STEPS = ("trainer.num_steps=4", "eval.interval=4", "checkpoint.interval=2")
_NUM_EVAL = ("data.sources.games.num_eval=10", "data.sources.calculator.num_eval=10")
SIZES = {
    "guessing_game": (*_STEPS, shrink("guessing_game/model"), "data.num_eval=10"),
    "mixture": (*_STEPS, *_NUM_EVAL),
}
"""Of the examples in a test."""
_PREFIX = {"guessing_game": "", "mixture": "data.sources.games."}
_MORE = {
    "guessing_game": (),
    "mixture": (f"data.sources.calculator.env.tools={EXAMPLES / 'calculator/tools.py'}",),
}


def make_worlds(folder: Path) -> Path:
    """held.py beside the shipped game; its rows, and the calculator's, in data/."""
    shutil.copy(EXAMPLES / "guessing_game/game.py", folder)
    shutil.copy(Path(__file__).with_name("held.py"), folder)
    for example in ("guessing_game", "calculator"):
        subprocess.run([sys.executable, EXAMPLES / example / "make_data.py"], cwd=folder, check=True)
    return folder / "held.py"


class Game:
    """A run below a folder of its own; `run-seen` beside it is what its worlds have seen.

    Args:
        world: a class of held.py.
    """

    def __init__(self, folder: Path, *words: str, example: str = "guessing_game", world: str = "SavedGuess") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.example, self.run, self.seen = example, RunDir(folder / "run"), folder / "run-seen"
        (self.seen / "effects").mkdir(parents=True)
        held, prefix = make_worlds(folder), _PREFIX[example]
        # A call that is held must not be late.
        # Pluses: the source of a mixture says nothing of it yet.
        own = (f"{prefix}env.name={held}:{world}", f"++{prefix}env.timeout_s=900", "rollout.dump=true")
        shipped = ("--config-dir", str(EXAMPLES / example), f"+exp={example}_tiny")
        self.words = (*shipped, *HERE, *SIZES[example], *_MORE[example], *own, f"run_dir={self.run.path}", *words)

    def batch_seed(self, step: int) -> int:
        """Of the game's share of the batch that a step trains on."""
        seed = derive_seed(0, "rollout", step)
        return derive_seed(seed, "source", "games") if self.example == "mixture" else seed

    @property
    def calls(self) -> list[str]:
        """Of worlds, as they came."""
        file = self.seen / "calls"
        return file.read_text().splitlines() if file.is_file() else []

    def start(self) -> subprocess.Popen[bytes]:
        """Begin, or go on with `resume`."""
        words = ("resume", str(self.run.path)) if self.run.path.exists() else self.words
        with (self.run.path.parent / "output").open("ab") as out:
            argv = [sys.executable, "-m", "slurm_rl", *words]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen(argv, cwd=self.run.path.parent, env=env, stdout=out, stderr=out)

    def finish(self) -> None:
        process = self.start()
        assert process.wait(timeout=TIMEOUT_S) == 0, self.output

    def hold(self, step: int, turn: int) -> None:
        """From now on half of this turn's calls wait; `held` says when."""
        write_text(self.seen / "hold", f"{self.batch_seed(step)} {turn}")

    @property
    def held(self) -> int | None:
        """The process of a call that waits; None: there is none."""
        with contextlib.suppress(OSError):
            told, _, pid = (self.seen / "held").read_text().rpartition(" ")
            return int(pid) if told == (self.seen / "hold").read_text() else None
        return None

    def release(self) -> None:
        (self.seen / "hold").unlink()

    def is_held(self, saved: int = 0) -> bool:
        """A call waits, and the checkpoint of this step is whole."""
        return self.held is not None and (saved == 0 or (self.run.checkpoints / f"step-{saved}").is_dir())

    def kill_in(self, step: int, turn: int, saved: int = 0) -> None:
        """Go on until half of a turn's calls are held, and kill the trainer."""
        self.hold(step, turn)
        process = self.start()
        self.wait(process, lambda: self.is_held(saved), f"turn {turn} of step {step}")
        self.kill(process)
        self.release()

    def kill_after(self, num_calls: int, seconds: float, *, whole: bool) -> bool:
        """Go on for so many calls of worlds, and so much longer, and kill; False if the run was over before.

        Args:
            whole: all processes of the run, as a machine that is switched off; else the trainer.
        """
        file, process = self.seen / "calls", self.start()
        file.touch()
        wanted = file.read_bytes().count(b"\n") + num_calls
        deadline = time.monotonic() + TIMEOUT_S
        while file.read_bytes().count(b"\n") < wanted and process.poll() is None:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return self.kill(process, whole=whole)

    def kill(self, process: subprocess.Popen[bytes], *, whole: bool = False) -> bool:
        """With SIGKILL; returns when the command has ended, False where it had finished before."""
        has_killed = False
        # Again: of those that live some start others.
        while found := [
            pid for pid in find_processes(self.run.path) if whole or "slurm_rl.trainers.grpo.main" in command_line(pid)
        ]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    has_killed = True
            if not whole:
                break
        code = process.wait(timeout=TIMEOUT_S)
        assert code == 0 or has_killed, f"it ended by itself: {self.output}"
        return code != 0

    def wait(self, process: subprocess.Popen[bytes], is_there: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_there():
            assert process.poll() is None, f"the run is over before {what}: {self.output}"
            assert time.monotonic() < deadline, f"{what} did not come: {self.output}"
            time.sleep(0.02)

    def ask_to_stop(self) -> None:
        """As Slurm asks before a time limit: the process that leads the job, which submitit's own has started."""
        leads = [pid for pid in find_processes(self.run.path) if "submitit.core._submit " in command_line(pid)]
        os.kill(max(leads), signal.SIGUSR2)

    @property
    def output(self) -> str:
        return (self.run.path.parent / "output").read_text()[-4000:]
