"""`logs`: print the logs of a run's newest attempt, once or as they grow."""

import argparse
import sys
import time
from pathlib import Path

from slurm_rl.cli.find import find_run
from slurm_rl.cli.output import note, to_printable
from slurm_rl.cli.run_facts import describe_phase
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.record import RunState, load_job
from slurm_rl.launch.jobs import read_far_log, read_states
from slurm_rl.run_dir.run_dir import RunDir

_DRIVER = "driver"
_READ_EVERY_S = 0.5
# Ask Slurm rarely: its controller serves all users.
_ASK_EVERY_S = 5.0
# Ray hands out the whole log each time.
_ASK_FAR_EVERY_S = 3.0


def run(args: argparse.Namespace) -> int:
    directory = find_run(args.rest)
    if (text := read_far_log(directory)) is not None:
        return _print_far(directory, text, args.who, follow=args.follow)
    if args.follow:
        return _follow(directory, args.who)
    path = log_path(directory, args.who)
    is_missing = not path.is_file()
    if (args.who == _DRIVER and is_missing) or (not is_missing and not path.stat().st_size):
        _explain_empty(directory, args.who)
        return 0
    if is_missing:
        found = ", ".join(sorted(p.stem for p in path.parent.glob("*.log"))) or "none yet"
        state = read_states([directory])[0]
        raise ConfigError(
            f"the newest attempt has no log {args.who} yet",
            seen=f"a run that is {state}",
            action=f"wait, or choose another log with --who: {found}; or job",
        )
    sys.stdout.write(to_printable(path.read_text(encoding="utf-8", errors="replace")))
    return 0


def _explain_empty(run: RunDir, who: str) -> None:
    """Print to stderr what the run does while a log is empty."""
    state, name = read_states([run])[0], "the trainer" if who == _DRIVER else who
    phase = describe_phase(run, time.time()) if state.word == "running" else ""
    note(to_printable(f"# no log of {name} yet; the run is {state}" + (f"; {phase}" if phase else "")))


def log_path(run: RunDir, who: str) -> Path:
    """Return the path of this log of the newest attempt, which need not exist."""
    if who == "job":
        job = load_job(run)
        return run.submitit / f"{job.job_id if job else 'none'}_0_log.out"
    return (run.attempts / "latest").resolve() / "logs" / f"{who}.log"


def _follow(run: RunDir, who: str) -> int:
    path, offset = log_path(run, who), 0
    state, asked = _ask(run, None), time.monotonic()
    phase = ""
    while True:
        is_last = not state.is_alive or run.end.is_file()
        if (newest := log_path(run, who)) != path:
            # A restarted job writes the next attempt's log; first the rest of this one.
            _copy(path, offset)
            path, offset = newest, 0
        offset = _copy(path, offset)
        if not offset and (news := _phase_without_age(run)) != phase:
            phase = news
            note(to_printable(f"# {phase}"))
        if is_last:
            _ask(run, state)
            return 0
        time.sleep(_READ_EVERY_S)
        if time.monotonic() - asked > _ASK_EVERY_S:
            state, asked = _ask(run, state), time.monotonic()


def _phase_without_age(run: RunDir) -> str:
    return describe_phase(run, time.time()).rpartition(" (for ")[0]


def _ask(run: RunDir, before: RunState | None) -> RunState:
    """Print the state of the run to stderr when it changes."""
    state = read_states([run])[0]
    if state.word == "unknown" and before is not None:
        return before  # Slurm is away for a moment
    if before is None or (state.word, state.is_alive) != (before.word, before.is_alive):
        print(f"# {to_printable(str(state))}", file=sys.stderr, flush=True)
    return state


def _copy(path: Path, offset: int) -> int:
    """Print the file from `offset`, and return the new offset."""
    if not path.is_file():
        return offset
    with path.open("rb") as file:
        file.seek(offset)
        sys.stdout.write(to_printable(file.read().decode(errors="replace")))
        sys.stdout.flush()
        return file.tell()


def _print_far(run: RunDir, text: str, who: str, *, follow: bool) -> int:
    """Print the log of a run on another file system, once or until the job ends."""
    if who != "driver":
        raise ConfigError("--who must be driver, since the other logs are on the cluster", seen=who)
    shown = 0
    if not text:
        _explain_empty(run, who)
    while True:
        sys.stdout.write(to_printable(text[shown:]))
        sys.stdout.flush()
        shown = len(text)
        if not follow:
            return 0
        # Read the state first: everything printed before it is in the log read afterwards.
        follow = read_states([run])[0].is_alive
        text = read_far_log(run) or ""
        if follow:
            time.sleep(_ASK_FAR_EVERY_S)
