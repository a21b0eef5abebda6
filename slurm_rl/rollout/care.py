"""A rollout engine that died or hangs is replaced on its own GPUs, and the run goes on within the attempt.

A whole restart of Ray, the policy and all engines for the sake of one would cost minutes. So:

    its process ends, or gives no sign of life within its deadline (as its node's agent tells, while it works)
    -> killed, started again in its place -> the newest weights, with the proof of every sync -> its requests again

Requests carry their seeds, so that a synchronous run has the numbers of one that nobody disturbed. With
`rollout.max_off_policy_steps` what was in flight is sampled with the newest weights.

Not in place: engines on the policy's own GPUs (`rollout.colocate`), which cannot start beside it, and engines that die
while weights go to them directly, since the policy waits in the same transfer. Then the attempt ends, as it does when
an engine was replaced MOST times.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from slurm_rl.errors import SlurmRLError, TrainingError
from slurm_rl.node.hang_monitor import read_node_reports
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster

MOST = 3
"""Replacements of one engine in an attempt; after them its node is suspect."""
_LOOK_S = 5.0


class Engines(Protocol):
    """What starts one."""

    def __call__(self, index: int, generation: int) -> Actor:
        """Engine `index` of the plan, for the `generation`-th time (from 1); returns before it has loaded."""


class EngineCare:
    """Keeps the engines of an attempt.

    Args:
        engines: of the plan, in its order; who holds this list sees the new ones in it.
        start: starts one again.
        can_replace: False where an engine cannot start while the policy is there.
    """

    def __init__(
        self,
        cluster: Cluster,
        engines: list[Actor],
        start: Engines,
        run: RunDir,
        attempt: AttemptDir,
        *,
        start_timeout_s: float,
        can_replace: bool = True,
    ) -> None:
        self.cluster, self.engines, self.start = cluster, engines, start
        self.run_dir, self.attempt, self.start_timeout_s = run, attempt, start_timeout_s
        self.can_replace = can_replace
        self.lock = threading.Lock()
        """Held while the policy trains, until its weights are on their way: what it holds has no version meanwhile."""
        self.reload: Callable[[], Any] = lambda: None
        """Sends the newest weights to all engines and has them prove it; set once there are some."""
        self._counts: Counter[str] = Counter()
        self._unproven: set[str] = set()
        self._is_busy = False
        self._late: dict[str, tuple[int, str]] = {}
        self._reader: threading.Thread | None = None

    def recover(self, lost: ActorLost) -> None:
        """Return when an engine stands in the place of the lost one, with the newest weights.

        Raises:
            ActorLost: it is none of the engines, or cannot be replaced.
            TrainingError: it was replaced too often, or its successor does not come up.
        """
        place = next((at for at, engine in enumerate(self.engines) if engine.name == lost.actor), None)
        if place is None or not self.can_replace:
            raise lost
        self._replace(place, lost.handle, str(lost))

    def check(self) -> None:
        """Replace an engine that hangs; to be called again and again by whoever waits. Cheap."""
        if not self.can_replace:
            return
        if self._reader is None:
            # A shared disk may take its time, which is no step's.
            self._reader = threading.Thread(target=self._read, name="engine-care", daemon=True)
            self._reader.start()
        # Where the lock is held, perhaps this thread holds it, and waits for the policy.
        if not self._late or self._is_busy or self.lock.locked():
            return
        late, self._late = self._late, {}
        for place, engine in enumerate(list(self.engines)):
            if engine.name in late and late[engine.name][0] == self._counts[engine.name]:
                self._replace(place, engine.handle, late[engine.name][1])

    def _read(self) -> None:
        while True:
            self._late = self._find_late()
            time.sleep(_LOOK_S)

    def _find_late(self) -> dict[str, tuple[int, str]]:
        """Name of each engine that its agent finds late -> which generation of it, and how late, in words."""
        found = {}
        for told in read_node_reports(self.attempt):
            for one in told["late"]:
                name, _, generation = one["name"].partition(".")
                usual = f"at most {one['deadline_s']:g} s are usual"
                found[name] = int(generation or 0), f"no sign of life for {one['age_s']:g} s in {one['phase']}, {usual}"
        return found

    def _replace(self, place: int, handle: Any, why: str) -> None:
        with self.lock:
            name = self.engines[place].name
            if self.engines[place].handle is not handle and name not in self._unproven:
                return  # another thread was first
            self._is_busy, start = True, time.monotonic()
            try:
                self._bring_up(place, why)
            finally:
                self._is_busy = False
            seconds = round(time.monotonic() - start, 1)
            append_event(
                self.run_dir,
                "engine/replaced",
                attempt=self.attempt.number,
                engine=name,
                count=self._counts[name],
                seconds=seconds,
                cause=why,
            )

    def _bring_up(self, place: int, why: str) -> None:
        name = self.engines[place].name
        while True:
            self._unproven.add(name)
            self._counts[name] += 1
            if self._counts[name] > MOST:
                self._suspect(place, name, why)
                raise TrainingError(
                    f"{name} must live: it was replaced {MOST} times in this attempt", seen=why, where="driver.log"
                )
            _kill(self.engines[place].handle)
            self.engines[place] = fresh = self.start(place, self._counts[name])
            try:
                self.cluster.gather(
                    [(fresh, fresh.handle.ready.remote())], timeout_s=self.start_timeout_s, what="replacing an engine"
                )
                self.reload()
            except ActorLost as error:
                if error.actor != name:
                    raise
                why = str(error)
                continue
            self._unproven.discard(name)
            return

    def _suspect(self, place: int, name: str, why: str) -> None:
        with contextlib.suppress(SlurmRLError, OSError, IndexError, StopIteration):
            rank = next(one.node for one in self.cluster.plan.actors if one.role == "rollout" and one.index == place)
            node = next(told["host"] for told in read_node_reports(self.attempt) if told["rank"] == rank)
            said = f"{name} was replaced {MOST} times: {why}"
            finding = {"check": "engine", "value": said, "strength": "soft"}
            append_event(self.run_dir, "node/unfit", node=node, attempt=self.attempt.number, **finding)


def _kill(handle: Any) -> None:
    """Ask Ray to; a process that is stopped hears nothing, and its successor ends it (node/processes.py)."""
    import ray

    with contextlib.suppress(Exception):  # dead already
        ray.kill(handle, no_restart=True)
