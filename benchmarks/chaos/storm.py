"""Inject the faults of a schedule into a run, undo each one in time, and wait for the end of the run."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.chaos import inject
from benchmarks.chaos.findings import Hit
from benchmarks.chaos.scene import Missed, Scene
from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.watch import Watch
from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import wait_until

BACK_S = 240.0
"""Seconds within which a run must train and save again after any fault."""
_MAX_RESUMES = 5


class RunOverError(Exception):
    """The run finished, which was allowed."""


class Storm:
    """One run under one schedule."""

    def __init__(
        self, scene: Scene, watch: Watch, resume: Callable[[], None], log: Path | None, *, may_finish: bool = False
    ) -> None:
        """Args:
        may_finish: the run has a last step; the storm ends with it.
        resume: what a user does after the run has ended.
        log: file for a JSON line per occurrence.
        """
        self.scene, self.watch, self.resume, self.log = scene, watch, resume, log
        self.may_finish = may_finish
        self.hits: list[Hit] = []
        self.broken: list[str] = []
        self.resumes = 0
        self._undone: list[Future[object]] = []

    def run_schedule(self, faults: Sequence[Fault], until_s: float) -> None:
        """Inject all faults, then wait until second `until_s`."""
        start = time.monotonic()
        with ThreadPoolExecutor(8) as pool, contextlib.suppress(RunOverError):
            for fault in faults:
                self._wait(start + fault.at_s)
                if fault.waits:
                    self._wait_for_progress()
                self.scene.serve()
                self._inject(fault, pool)
            self._wait(start + until_s)
        for undone in self._undone:
            undone.result()

    def _inject(self, fault: Fault, pool: ThreadPoolExecutor) -> None:
        undo, missed = None, ""
        self.scene.note("")
        try:
            undo = inject.do(self.scene, fault)
        except Missed as why:
            missed = str(why)
        self.hits.append(Hit(self.scene.moment, fault.kind, self.scene.victim, fault.lasts_s, missed))
        fields = {"kind": fault.kind, "victim": self.scene.victim, "lasts_s": fault.lasts_s, "missed": missed}
        fields |= {"moment": round(self.scene.moment, 2)}
        self.record("fault", **{key: value for key, value in fields.items() if value})
        if undo is not None:
            self._undone.append(pool.submit(self._undo_later, fault, undo))

    def _undo_later(self, fault: Fault, undo: inject.Undo) -> None:
        time.sleep(fault.lasts_s)
        undo()
        self.record("undone", kind=fault.kind)

    def _wait(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self._look_for_end()
            time.sleep(min(left, 0.5))

    def _wait_for_progress(self) -> None:
        deadline = time.monotonic() + BACK_S
        while not self._has_progress():
            self._look_for_end()
            if time.monotonic() > deadline:
                last = self.hits[-1].kind if self.hits else "its start"
                self.broken.append(f"the run must go on by itself; nothing was saved for {BACK_S:g} s after {last}")
                self.record("broken", promise=self.broken[-1])
                return
            time.sleep(0.2)

    def _has_progress(self) -> bool:
        """Return whether the newest attempt has saved since the last fault."""
        last = self.hits[-1].time if self.hits else 0.0
        news = [s.what for s in self.watch.signs if s.what in ("checkpoint/saved", "attempt/started") and s.time > last]
        return news[-1:] == ["checkpoint/saved"]

    def _look_for_end(self) -> None:
        """Record a violation if the run ended too early, and resume it as a user would."""
        end = self.scene.run.run_dir.end
        # A start that Slurm ends during a requeue records a cancel, which the next start revokes.
        if self.resumes >= _MAX_RESUMES or not end.is_file() or self.scene.is_queued() or not end.is_file():
            return
        end_record: dict[str, Any] = read_json(end)
        if self.may_finish and end_record["state"] == "finished":
            raise RunOverError
        self.broken.append(f"the run must go on by itself; it ended {end_record['state']}: {end_record['cause']}")
        self.record("broken", promise=self.broken[-1])
        self.resumes += 1
        self.resume()
        wait_until(lambda: not end.is_file(), "the resumed run to begin", timeout_s=BACK_S)

    def record(self, what: str, **fields: Any) -> None:
        row = {"time": round(time.time(), 2), "what": what, **fields}
        print(f"{time.strftime('%H:%M:%S')} {what} {' '.join(f'{k}={v}' for k, v in fields.items())}", flush=True)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(json.dumps(row) + "\n")
