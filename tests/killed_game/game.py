"""A run of examples/guessing_game with real Ray, vLLM and torch on CPU: start, hold in a turn, kill, resume."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.run_dir.run_dir import RunDir, write_text
from tests.examples.kit import EXAMPLES, LOCAL_OVERRIDES, ROOT
from tests.tiny_models import shrink
from tests.whole_run import command_line, find_processes

TIMEOUT_S = 600.0
_STEPS = ("trainer.num_steps=4", "eval.interval=4", "checkpoint.interval=2")
_NUM_EVAL = ("data.sources.games.num_eval=10", "data.sources.calculator.num_eval=10")
SIZES = {
    "guessing_game": (*_STEPS, shrink("guessing_game/model"), "data.num_eval=10"),
    "mixture": (*_STEPS, *_NUM_EVAL),
}
"""Sizes of the examples in a test."""
_PREFIX = {"guessing_game": "", "mixture": "data.sources.games."}
_MORE = {
    "guessing_game": (),
    "mixture": (f"data.sources.calculator.env.tools={EXAMPLES / 'calculator/tools.py'}",),
}


def copy_environments(folder: Path) -> Path:
    """Copy held.py and the shipped game to `folder`; write the rows of game and calculator to data/."""
    shutil.copy(EXAMPLES / "guessing_game/game.py", folder)
    shutil.copy(Path(__file__).with_name("held.py"), folder)
    for example in ("guessing_game", "calculator"):
        subprocess.run([sys.executable, EXAMPLES / example / "make_data.py"], cwd=folder, check=True)
    return folder / "held.py"


class Game:
    """A run in `folder`; its environments log to `run-seen`.

    Args:
        environment: class in held.py.
    """

    def __init__(
        self, folder: Path, *words: str, example: str = "guessing_game", environment: str = "SavedGuess"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.example, self.run, self.seen = example, RunDir(folder / "run"), folder / "run-seen"
        (self.seen / "effects").mkdir(parents=True)
        held, prefix = copy_environments(folder), _PREFIX[example]
        # A held call must not time out. `++` because the mixture's source does not set the key.
        own = (f"{prefix}env.name={held}:{environment}", f"++{prefix}env.timeout_s=900", "rollout.dump=true")
        shipped = ("--config-dir", str(EXAMPLES / example), f"+exp={example}_tiny")
        sizes = (*LOCAL_OVERRIDES, *SIZES[example], *_MORE[example])
        self.words = (*shipped, *sizes, *own, f"run_dir={self.run.path}", *words)

    def batch_seed(self, step: int) -> int:
        """Return the seed of the game's part of the batch for a step."""
        seed = derive_seed(0, "rollout", step)
        return derive_seed(seed, "source", "games") if self.example == "mixture" else seed

    @property
    def calls(self) -> list[str]:
        """Environment call ids, in order of arrival."""
        file = self.seen / "calls"
        return file.read_text().splitlines() if file.is_file() else []

    def start(self) -> subprocess.Popen[bytes]:
        """Start the run, or resume it."""
        words = ("resume", str(self.run.path)) if self.run.path.exists() else self.words
        with (self.run.path.parent / "output").open("ab") as out:
            argv = [sys.executable, "-m", "slurm_rl", *words]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen(argv, cwd=self.run.path.parent, env=env, stdout=out, stderr=out)

    def finish(self) -> None:
        process = self.start()
        assert process.wait(timeout=TIMEOUT_S) == 0, self.output

    @property
    def held(self) -> int | None:
        """Pid of a held call; None if none is held."""
        with contextlib.suppress(OSError):
            hold, _, pid = (self.seen / "held").read_text().rpartition(" ")
            return int(pid) if hold == (self.seen / "hold").read_text() else None
        return None

    def release(self) -> None:
        (self.seen / "hold").unlink()

    def start_until_held(self, step: int, turn: int, saved: int = 0) -> subprocess.Popen[bytes]:
        """Run until half of a turn's calls are held and the checkpoint of step `saved` is complete."""
        write_text(self.seen / "hold", f"{self.batch_seed(step)} {turn}")
        process, deadline = self.start(), time.monotonic() + TIMEOUT_S
        while self.held is None or (saved and not (self.run.checkpoints / f"step-{saved}").is_dir()):
            assert process.poll() is None, f"the run is over before turn {turn} of step {step}: {self.output}"
            assert time.monotonic() < deadline, f"turn {turn} of step {step} did not come: {self.output}"
            time.sleep(0.02)
        return process

    def kill_in(self, step: int, turn: int, saved: int = 0) -> None:
        """Run until half of a turn's calls are held, then kill the trainer."""
        self.kill(self.start_until_held(step, turn, saved))
        self.release()

    def kill_after(self, num_calls: int, seconds: float, *, whole: bool) -> bool:
        """Run until `num_calls` environment calls and `seconds` more, then kill; return False if the run had finished.

        Args:
            whole: kill all processes of the run, as a power failure would; otherwise the trainer.
        """
        file, process = self.seen / "calls", self.start()
        file.touch()
        num_lines = file.read_bytes().count(b"\n") + num_calls
        deadline = time.monotonic() + TIMEOUT_S
        while file.read_bytes().count(b"\n") < num_lines and process.poll() is None:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return self.kill(process, whole=whole)

    def kill(self, process: subprocess.Popen[bytes], *, whole: bool = False) -> bool:
        """SIGKILL and wait for the command to end; return False if it had finished before."""
        has_killed = False
        # Repeat, because living processes may start others.
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

    def send_stop_signal(self) -> None:
        """Send the stop signal as Slurm does, to the leader of the job, a child of submitit's process."""
        leads = [pid for pid in find_processes(self.run.path) if "submitit.core._submit " in command_line(pid)]
        os.kill(max(leads), signal.SIGUSR2)

    @property
    def output(self) -> str:
        return (self.run.path.parent / "output").read_text()[-4000:]


_PROGRAM = (
    *("trainer.prompts_per_step=8", "algorithm.group_size=4", "rollout.dump=true"),
    *("env.agent_concurrency=2", "env.agent_rows_per_process=8", "env.agent_timeout_s=900"),
)


class ProgramGame(Game):
    """A game with the external program `held_agent.py` instead of an environment; the traces are the same."""

    def __init__(self, folder: Path, *words: str) -> None:
        super().__init__(folder)
        agent = shutil.copy(Path(__file__).with_name("held_agent.py"), folder)
        shipped = ("--config-dir", str(EXAMPLES / "openai_program"), "+exp=openai_program_tiny")
        own = (f"env.agent_command=[python,{agent}]", f"run_dir={self.run.path}")
        self.words = (*shipped, *LOCAL_OVERRIDES, *SIZES["guessing_game"], *_PROGRAM, *own, *words)
