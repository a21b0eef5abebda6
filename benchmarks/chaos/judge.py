"""Compare a run after a storm with the guarantees."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos.findings import (
    Hit,
    compare,
    find_late,
    find_second_writer,
    find_surviving_seconds,
    strip_times,
)
from benchmarks.chaos.watch import Sign
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.light.runs import LightRun, wait_until_clean


@dataclass(frozen=True)
class Limits:
    """Guaranteed limits, with seconds for this machine."""

    process_s: float
    node_s: float
    ettr: float

    def by_detection(self) -> Mapping[str, float]:
        return {"process": self.process_s, "node": self.node_s}


@dataclass(frozen=True)
class Outcome:
    """Numbers of a storm."""

    wall_s: float
    """From the start of the first attempt to the end of the run."""
    trained_s: float
    redone_s: float
    num_attempts: int
    num_starts: int
    """Number of controllers that held the run."""

    @property
    def ettr(self) -> float:
        """Effective training time ratio: share of the wall time in steps that remain at the end."""
        return self.trained_s / self.wall_s if self.wall_s else 0.0

    def render(self) -> str:
        lost = self.wall_s - self.trained_s
        return (
            f"{self.wall_s:.0f} s: ETTR {self.ettr:.1%}, of {lost:.0f} s lost {self.redone_s:.0f} s in steps "
            f"done again; {self.num_attempts} attempts by {self.num_starts} controllers"
        )


def read_outcome(run: RunDir, signs: Sequence[Sign]) -> Outcome:
    numbers = run.attempt_numbers()
    trained, redone = find_surviving_seconds(read_rows(run.attempt(number).path / "steps.jsonl") for number in numbers)
    first = next((sign.time for sign in signs if sign.what == "attempt/started"), 0.0)
    last = next((sign.time for sign in reversed(signs) if sign.what == "job/ended"), first)
    return Outcome(last - first, trained, redone, len(numbers), len(list(run.lease.glob("[0-9]*.json"))))


def find_broken(
    run: LightRun,
    expected: Sequence[Mapping[str, Any]],
    hits: Sequence[Hit],
    signs: Sequence[Sign],
    limits: Limits,
) -> list[str]:
    """Return the violated guarantees of the finished run, one sentence each."""
    end = run.wait_for_end(timeout_s=300)
    broken = [] if end["state"] == "finished" else [f"the run must finish; it {end['state']}: {end['cause']}"]
    rows = read_rows(run.run_dir.metrics)
    if difference := compare(strip_times(rows), expected):
        broken.append(f"the metrics must be those of an undisturbed run in every digit; {difference}")
    if second := _find_second_writer(run.run_dir, rows):
        broken.append(f"a run has one writer at a time; {second}")
    outcome = read_outcome(run.run_dir, signs)
    if outcome.ettr < limits.ettr:
        broken.append(f"the ETTR must be at least {limits.ettr:.0%}; it is {outcome.ettr:.1%}")
    try:
        wait_until_clean(run.cluster)
    except AssertionError as error:
        broken.append(f"nothing may be left behind; {error}")
    return broken + find_late(hits, signs, limits.by_detection())


def _find_second_writer(run: RunDir, rows: Sequence[Mapping[str, Any]]) -> str:
    """Check the writer's epoch in the final rows and in everything that the light run recorded."""
    stayed = [int(row["time/epoch"]) for row in rows if "time/epoch" in row]
    witnessed = [row["epoch"] for row in read_rows(run.path / "writers.jsonl")]
    return next(filter(None, map(find_second_writer, itertools.chain([stayed], [witnessed]))), "")
