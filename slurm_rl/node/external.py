"""Runs somebody else's trainer: `python -m slurm_rl.node.external --run-dir <run> --attempt <n>`, on the head node.

With external.start=torchrun it is every rank that torchrun starts, and runs the program of that rank.

Standard library alone, since it runs in the image of that trainer. The trainer finds in its environment

    RAY_ADDRESS               the cluster of this run; under torchrun RANK, WORLD_SIZE and the like
    SLURM_RL_RUN_DIR          the run directory
    SLURM_RL_CHECKPOINTS      where to save; the names of external/layouts.py count there as progress, `step-<k>` too
    SLURM_RL_RESUME           1 from the second attempt on
    SLURM_RL_CHECKPOINT       of `external.layout`, the newest whole one below that folder; empty for none
    SLURM_RL_CHECKPOINT_STEP  and its step

Under torchrun this is each rank's process, with the trainer as its child, and rank 0 speaks for all.

A stop (SIGUSR2, SIGTERM) is a SIGTERM to it, and SIGKILL after a while: who has a handler for it can save then. The
next attempt goes on from its last checkpoint. outcome.json says how it ended, in the words of our own trainers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

from slurm_rl.node.attempt import attempt_parser, open_attempt
from slurm_rl.node.driver import EXIT_CHECKPOINTED, describe_status
from slurm_rl.node.external_resume import Choice, build_argv, choose_checkpoint, describe_checkpoint, read_choice
from slurm_rl.node.processes import die_with_parent
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_last

_POLL_S = 0.2
_GRACE_SHARE = 0.5
"""Of the notice that Slurm gives; the rest is for Ray and the controller."""
_MOST_GRACE_S = 60.0
_PEERS_S = 10.0
"""A rank whose peers were stopped fails of that; its own node's word to stop may come that much later."""
_ALONE_S = 3.0
"""Slurm sends SIGTERM to every process at once; the agent's word to stop follows when it has seen its own."""
_EXIT_TERMINATED = 128 + signal.SIGTERM


class ExternalTrainer:
    """One attempt of the program."""

    def __init__(self, run: RunDir, plan: JobPlan, attempt: AttemptDir) -> None:
        self._run, self._plan, self._attempt = run, plan, attempt
        self._stopped_at = 0.0
        self._asked = False
        self._is_rank = plan.torchrun is not None
        self._is_given_up = False
        """torchrun ends its ranks by SIGTERM when one failed; to stop they are told by SIGUSR2."""

    def main(self) -> int:
        """Run it to its end; the exit status is ours: 0, 75 when it was stopped, 1.

        Of a rank it is 0 when it was stopped, too: torchrun takes every other status for a failure.
        """
        for signum in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        number = self._attempt.number
        if self._plan.torchrun is None:
            choice = choose_checkpoint(self._plan, self._run, number)
        else:
            choice = read_choice(os.environ)
        argv = build_argv(self._plan, number, choice)
        try:
            # A group of its own: a SIGTERM then reaches the launcher's children too, and not this process.
            child = subprocess.Popen(argv, env=self._environment(choice), process_group=0)
        except OSError as error:
            return self._end("failed", 1, cause=f"{argv[0]} could not be started: {error.strerror}")
        if self._speaks:
            name = choice[0] if choice else None
            append_event(self._run, "external/started", attempt=number, program=argv[0], checkpoint=name)
        status = self._wait(child)
        # One that saves on SIGTERM leaves with 0, too, and is not done.
        if status == 0 and not self._asked:
            return self._end("finished", 0)
        if self._is_rank:
            self._wait_for_word()
        if self._is_given_up:
            return _EXIT_TERMINATED
        if self._stopped_at:
            cause = "stopped; its own last checkpoint stays"
            self._end("checkpointed", EXIT_CHECKPOINTED, cause=cause)
            return 0 if self._is_rank else EXIT_CHECKPOINTED
        return self._end("failed", 1, cause=f"{argv[0]} {describe_status(status)}; see driver.log")

    @property
    def _speaks(self) -> bool:
        """Whether this process says for all of them what happened."""
        return not self._is_rank or os.environ.get("RANK") == "0"

    def _wait_for_word(self) -> None:
        deadline = time.monotonic() + (_ALONE_S if self._is_given_up else _PEERS_S)
        while (not self._stopped_at or self._is_given_up) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _environment(self, choice: Choice) -> dict[str, str]:
        resume = "1" if self._attempt.number > 1 else "0"
        own = {"SLURM_RL_RUN_DIR": str(self._run.path), "SLURM_RL_CHECKPOINTS": str(self._run.checkpoints)}
        # Ours must not pick up a module that lies in the working directory; a script needs those in its own folder.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        return {**env, **own, "SLURM_RL_RESUME": resume, **describe_checkpoint(choice)}

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        grace_s = min(_MOST_GRACE_S, _GRACE_SHARE * self._plan.limits.checkpoint_lead_s)
        while (status := child.poll()) is None:
            if self._stopped_at and not self._asked:
                self._asked = True
                os.killpg(child.pid, signal.SIGTERM)
            if self._stopped_at and time.monotonic() > self._stopped_at + grace_s:
                os.killpg(child.pid, signal.SIGKILL)
                return child.wait()
            time.sleep(_POLL_S)
        return status

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._is_given_up = self._is_rank and (signum == signal.SIGTERM and (self._is_given_up or not self._stopped_at))
        self._stopped_at = self._stopped_at or time.monotonic()

    def _end(self, outcome: str, status: int, **fields: Any) -> int:
        if self._speaks:
            write_last(self._run, self._attempt.outcome, {"outcome": outcome, "exit_code": status, **fields})
        return status


def main() -> int:
    run, attempt = open_attempt(attempt_parser("An external trainer, for one attempt.").parse_args())
    run.checkpoints.mkdir(exist_ok=True)
    return ExternalTrainer(run, JobPlan.from_json(read_json(run.plan)), attempt).main()


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())
    sys.exit(main())
