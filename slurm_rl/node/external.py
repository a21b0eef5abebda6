"""Run an external trainer: `python -m slurm_rl.node.external --run-dir <run> --attempt <n>`, on the head node.

Standard library only, since it runs in the image of that trainer. With external.start=torchrun it is each rank's
process, runs the program of that rank, and rank 0 reports for all. The trainer finds in its environment

    RAY_ADDRESS               the cluster of this run; under torchrun RANK, WORLD_SIZE and the like
    SLURM_RL_RUN_DIR          the run directory
    SLURM_RL_CHECKPOINTS      where to save; the names of plan/checkpoint_layouts.py count as progress, also `step-<k>`
    SLURM_RL_RESUME           1 from the second attempt on
    SLURM_RL_CHECKPOINT       newest complete checkpoint of `external.layout` in that folder; empty for none
    SLURM_RL_CHECKPOINT_STEP  its step

A stop (SIGUSR2, SIGTERM) is passed on as SIGTERM once a save in progress is complete, and as SIGKILL after a grace
period. A program with external.before_limit is stopped at the deadline that it was given, so that it finishes no step
that it does not save. outcome.json reports how the trainer ended, in the same form as for our own trainers.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.node.driver import EXIT_CHECKPOINTED, describe_status
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.checkpoint_layouts import LAYOUTS, Found, fill_checkpoint
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.save_deadline import fill_limit
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_last

_POLL_S = 0.2
_TAIL_BYTES = 1 << 16
_REST_S = 60.0
"""Part of the lead for Ray and the controller, at most half; the trainer has the rest."""
_PEERS_S = 10.0
"""A rank may fail because its peers were stopped first; the stop of its own node may arrive this much later."""
_TERMINATED_S = 3.0
"""Slurm sends SIGTERM to every process at once; the agent's SIGUSR2 follows."""
_EXIT_TERMINATED = 128 + signal.SIGTERM
NAME_VARIABLE, STEP_VARIABLE = "SLURM_RL_CHECKPOINT", "SLURM_RL_CHECKPOINT_STEP"

Choice = tuple[str, int] | None
"""Name in the checkpoint folder, and step."""


class ExternalTrainer:
    """One attempt of the program."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir) -> None:
        self._run, self._plan, self._attempt = run, plan, attempt
        self._stopped_at = 0.0
        self._save_by = read_save_by(plan, attempt, time.time())
        self._is_at_limit = False
        self._stale = self._list_incomplete()
        self._is_signalled = False
        self._is_rank = plan.torchrun is not None
        self._is_terminated = False
        """Whether torchrun ends this rank: it sends SIGTERM if another rank failed, a stop is SIGUSR2."""
        self._reports = not self._is_rank or os.environ.get("RANK") == "0"

    def main(self) -> int:
        """Run the program to its end; return 0, 1, or 75 if it was stopped (0 for a rank, see rank.py)."""
        for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        number = self._attempt.number
        choice = read_choice(os.environ) if self._is_rank else choose_checkpoint(self._plan, self._run, number)
        argv = (*build_argv(self._plan, number, choice), *self._limit_words())
        try:
            # In its own process group: the SIGTERM then also reaches its children, and not this process.
            child = subprocess.Popen(argv, env=self._environment(choice), process_group=0)
        except OSError as error:
            return self._end("failed", 1, cause=f"{argv[0]} could not be started: {error.strerror}")
        if self._reports:
            checkpoint = choice[0] if choice else None
            known = {"save_by": self._save_by} if self._save_by else {}
            append_event(self._run, "external/started", attempt=number, program=argv[0], checkpoint=checkpoint, **known)
        status = self._wait(child)
        # A program that saves on SIGTERM may leave with 0 as well; it has not finished.
        if status == 0 and not self._is_signalled:
            if not self._says_limit():
                return self._end("finished", 0)
            self._is_at_limit, self._stopped_at = True, time.monotonic()
        if self._is_rank:
            self._wait_for_signal()
        if self._is_terminated:
            return _EXIT_TERMINATED
        if self._stopped_at:
            cause = "job.time_limit is near" if self._is_at_limit else "stopped; its own last checkpoint stays"
            self._end("checkpointed", EXIT_CHECKPOINTED, cause=cause, at_limit=self._is_at_limit)
            return 0 if self._is_rank else EXIT_CHECKPOINTED
        return self._end("failed", 1, cause=f"{argv[0]} {describe_status(status)}; see driver.log")

    def _wait_for_signal(self) -> None:
        deadline = time.monotonic() + (_TERMINATED_S if self._is_terminated else _PEERS_S)
        while (not self._stopped_at or self._is_terminated) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _environment(self, choice: Choice) -> dict[str, str]:
        # A script needs the modules in its own folder; only our own programs ignore them.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        return {
            **env,
            "SLURM_RL_RUN_DIR": str(self._run.path),
            "SLURM_RL_CHECKPOINTS": str(self._run.checkpoints),
            "SLURM_RL_RESUME": "1" if self._attempt.number > 1 else "0",
            **describe_checkpoint(choice),
        }

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        lead_s = self._plan.limits.checkpoint_lead_s
        grace_s = max(lead_s / 2, lead_s - _REST_S)
        while (status := child.poll()) is None:
            if self._save_by and time.time() > self._save_by and not self._stopped_at:
                self._is_at_limit, self._stopped_at = True, time.monotonic()
            if self._stopped_at and not self._is_signalled and not self._is_saving():
                self._is_signalled = True
                os.killpg(child.pid, signal.SIGTERM)
            if self._stopped_at and time.monotonic() > self._stopped_at + grace_s:
                os.killpg(child.pid, signal.SIGKILL)
                return child.wait()
            time.sleep(_POLL_S)
        return status

    def _limit_words(self) -> tuple[str, ...]:
        external = self._plan.external
        return fill_limit(external.before_limit, self._save_by, time.time()) if external and self._save_by else ()

    def _says_limit(self) -> bool:
        """Return whether the program's last output says that it ended early for the time limit."""
        message, path = self._plan.external and self._plan.external.limit_message, self._attempt.log("driver")
        if not message or not self._save_by or not path.is_file():
            return False
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return message.encode() in log.read()

    def _is_saving(self) -> bool:
        return bool(self._list_incomplete() - self._stale)

    def _list_incomplete(self) -> set[str]:
        external = self._plan.external
        with contextlib.suppress(OSError):
            if external is not None and external.layout is not None:
                return LAYOUTS[external.layout].find_incomplete(self._run.checkpoints)
        return set()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        is_first = self._is_terminated or not self._stopped_at
        self._is_terminated = self._is_rank and signum == signal.SIGTERM and is_first
        self._stopped_at = self._stopped_at or time.monotonic()

    def _end(self, outcome: str, status: int, **fields: Any) -> int:
        if self._reports:
            write_last(self._run, self._attempt.outcome, {"outcome": outcome, "exit_code": status, **fields})
        return status


def main() -> int:
    run, attempt = open_attempt(attempt_parser("An external trainer, for one attempt.").parse_args())
    run.checkpoints.mkdir(exist_ok=True)
    return ExternalTrainer(run, JobPlan.from_json(read_json(run.plan)), attempt).main()


def read_save_by(plan: JobPlan, attempt: AttemptDir, now: float) -> float:
    """Return the time by which the program must have saved for the time limit; 0 if it has no arguments for that, the
    job has no limit, or the limit is too short."""
    if plan.external is None or not plan.external.before_limit or not attempt.start.is_file():
        return 0.0
    deadline = float(read_json(attempt.start).get("save_by") or 0.0)
    return deadline if deadline > now else 0.0


def choose_checkpoint(plan: JobPlan, run: RunDir, attempt: int) -> Choice:
    """Return the newest complete checkpoint from the second attempt on, if the program's layout is known."""
    if plan.external is None or plan.external.layout is None or attempt == 1:
        return None
    layout = LAYOUTS[plan.external.layout]
    found = layout.newest(run.checkpoints)
    if found is None:
        if layout.blocks is not None and (blocking := run.checkpoints / layout.blocks).is_dir():
            blocking.rename(run.checkpoints / f"{layout.blocks}-incomplete-{attempt}")
        return None
    if layout.mend is not None:
        layout.mend(run.checkpoints / found.name)
    return found.name, found.step


def describe_checkpoint(choice: Choice) -> dict[str, str]:
    """Return the choice as environment variables; an empty name is no checkpoint."""
    name, step = choice or ("", "")
    return {NAME_VARIABLE: name, STEP_VARIABLE: str(step)}


def read_choice(env: Mapping[str, str]) -> Choice:
    """Return the choice from environment variables."""
    return (env[NAME_VARIABLE], int(env[STEP_VARIABLE])) if env.get(NAME_VARIABLE) else None


def build_argv(plan: JobPlan, attempt: int, choice: Choice) -> tuple[str, ...]:
    """Return the program's command line; the one of the first attempt if there is nothing to resume from."""
    external = plan.external
    assert external is not None
    if attempt == 1 or (external.layout is not None and choice is None):
        return external.first
    return external.later if choice is None else fill_checkpoint(external.later, Found(*choice))


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())
    sys.exit(main())
