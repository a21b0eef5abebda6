"""`status --watch`: show the state of runs again until all of them have ended, or until Ctrl-C."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_rl.cli.find import open_target
from slurm_rl.cli.run_facts import describe_phase, find_cancel, read_newest_row
from slurm_rl.launch.controller.attempts import EXIT_FAILED, EXIT_FINISHED
from slurm_rl.launch.controller.record import RunState
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.sweep.ledger import SweepDir, load_ledger
from slurm_rl.run_dir.run_dir import RunDir

REFRESH_S = 10.0
"""Interval of queries to Slurm, whose controller serves all users."""
_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
"""The alternate screen, as of `watch` and `less`: the scrollback keeps no old states."""
_HOME = "\x1b[H\x1b[J"


def watch(path: Path, show: Callable[[], object]) -> int:
    """Call `show` every REFRESH_S; without a terminal only after a change. Return 0 if every run has finished, else 1.

    Args:
        path: a run, sweep, pipeline or folder of runs.
        show: prints their state.
    """
    runs, before = _list_runs(path), None
    is_drawn = sys.stdout.isatty()
    if is_drawn:
        print(_ENTER, end="")
    try:
        while True:
            states = read_states(runs)
            if is_drawn:
                print(_HOME, end="")
                show()
            elif (now := [_describe(run, state) for run, state in zip(runs, states, strict=True)]) != before:
                show()
                before = now
            sys.stdout.flush()
            # `unknown` means that Slurm does not answer for a moment.
            if not any(state.is_alive or state.word == "unknown" for state in states):
                return EXIT_FINISHED if all(state.word == "finished" for state in states) else EXIT_FAILED
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return EXIT_FINISHED
    finally:
        if is_drawn:
            print(_LEAVE, end="")
            show()


def _list_runs(path: Path) -> list[RunDir]:
    if (sweep := SweepDir(path)).is_sweep:
        return [sweep.run(entry.index) for entry in load_ledger(sweep).runs]
    if (path / "plan.json").is_file():
        return [RunDir(path)]
    below = [RunDir(plan.parent) for plan in sorted([*path.glob("*/plan.json"), *path.glob("*/*/plan.json")])]
    return find_stages(path) or below or [open_target(path)]


def _describe(run: RunDir, state: RunState) -> tuple[object, ...]:
    """Return state, step and phase, without ages."""
    phase = describe_phase(run, time.time()).rpartition(" (for ")[0] if state.word == "running" else ""
    return state.word, state.detail, read_newest_row(run).get("step"), phase, find_cancel(run)
