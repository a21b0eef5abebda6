"""attempts/<n>/steps.jsonl: times of the loop of one attempt. Standard library only.

    {"step": 412, "stage": "grpo", "start": 1795223958.812, "seconds": 2.104, "phases": {"rollout": 1.3, "train": 0.7}}

Unlike metrics.jsonl it is never rewound: the goodput ledger counts steps that a crash lost. A row is written at the end
of its step and covers the time since the row before it or since `mark`, logging included. `stage` is that of
metrics.jsonl (a training step or `eval`), or `save`, the time that the loop waited for a checkpoint; `phases` may
overlap when sampling ahead.
"""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.jsonl import append_row

SAVE = "save"
_NO_STEP = ("eval", "warmup")
_RECENT = 20
_WHOLE = ("step", "eval")
"""Names of timers around a whole row, which is no phase of it."""


class StepLog:
    """Owned by the one process that writes metrics.jsonl.

    Args:
        path: of the file; None: nothing is written, as for a loop without an attempt.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._is_told = False
        self._recent: dict[bool, deque[float]] = {True: deque(maxlen=_RECENT), False: deque(maxlen=_RECENT)}
        self.mark()

    def mark(self) -> None:
        """Exclude the time until now from the next row."""
        self._start, self._since = time.time(), time.perf_counter()

    def recent(self, *, save: bool) -> list[float]:
        """Seconds of the newest steps of this attempt, or of the newest saves."""
        return list(self._recent[save])

    def add(self, step: int, stage: str, timers: Mapping[str, float] = {}) -> None:
        """Write the row of the step that has ended; a full disk only prints a warning.

        Args:
            step: training steps so far, over the whole run.
            timers: seconds by key; `time/<phase>_s` of metrics.jsonl are its phases, others are ignored.
        """
        seconds = time.perf_counter() - self._since
        if stage not in _NO_STEP:
            self._recent[stage == SAVE].append(seconds)
        phases = {key[5:-2]: round(value, 4) for key, value in timers.items() if is_phase(key)}
        row = {"step": step, "stage": stage, "start": round(self._start, 4), "seconds": round(seconds, 4)}
        if self._path is not None:
            try:
                append_row(self._path, {**row, "phases": phases})
            except OSError as error:
                if not self._is_told:
                    self._is_told = True
                    log_to_stderr(f"times of steps could not be written ({error}); the goodput ledger lacks them")
        self.mark()


def is_phase(key: str) -> bool:
    """Whether this key of metrics.jsonl is the seconds of a part of a step.

    >>> is_phase("time/train_s"), is_phase("time/step_s"), is_phase("time/tokens_per_s"), is_phase("reward/mean")
    (True, False, False, False)
    """
    return key.startswith("time/") and key.endswith("_s") and not key.endswith("_per_s") and key[5:-2] not in _WHOLE
