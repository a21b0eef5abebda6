"""Restarts a dead or hung rollout engine in place, on its own GPUs.

    process ended, or no heartbeat within the deadline (node agent's report)
    -> kill, start again -> load the newest weights and verify them -> send its requests again

Requests carry their seeds, so the metrics of a synchronous run stay the same. With `rollout.max_off_policy_steps` the
requests in flight are sampled with the newest weights.

Limits: not with `rollout.colocate` (vLLM needs free GPU memory to start), not during a direct weight transfer (the
policy waits in it), and at most MAX_RESTARTS times per engine and attempt. Otherwise the attempt ends.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from slurm_rl.errors import SlurmRLError, TrainingError
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster

MAX_RESTARTS = 3
"""Restarts of one engine in an attempt; then its node becomes suspect."""
_POLL_S = 5.0


class StartEngine(Protocol):
    """Starts an engine."""

    def __call__(self, index: int, generation: int) -> Actor:
        """Start engine `index` of the plan for the `generation`-th time (from 1); return before it has loaded."""


class EngineSupervisor:
    """Restarts the engines of an attempt.

    Args:
        engines: in the plan's order; replacements are put into this list.
        start: starts an engine again.
        can_replace: False if an engine cannot start while the policy runs.
    """

    def __init__(
        self,
        cluster: Cluster,
        engines: list[Actor],
        start: StartEngine,
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
        """Held while the policy trains, until its weights are in transfer: its weights have no version meanwhile."""
        self.reload: Callable[[], Any] = lambda: None
        """Sends the newest weights to all engines and verifies them; set once there are weights."""
        self._restarts: Counter[str] = Counter()
        self._unverified: set[str] = set()
        self._is_restarting = False
        self._late: dict[str, tuple[int, str]] = {}
        self._reader: threading.Thread | None = None

    def recover(self, lost: ActorLost) -> None:
        """Return once a replacement of the lost engine holds the newest weights.

        Raises:
            ActorLost: the actor is no engine, or cannot be replaced.
            TrainingError: it was restarted too often, or does not come up.
        """
        index = next((at for at, engine in enumerate(self.engines) if engine.name == lost.actor), None)
        if index is None or not self.can_replace:
            raise lost
        self._replace(index, lost.handle, str(lost))

    def check(self) -> None:
        """Replace a hung engine. Cheap; called repeatedly while the driver waits."""
        if not self.can_replace:
            return
        if self._reader is None:
            # A thread, because a shared disk may be slow.
            self._reader = threading.Thread(target=self._watch, name="engine-supervisor", daemon=True)
            self._reader.start()
        # If the lock is held, this thread may be the one that holds it.
        if not self._late or self._is_restarting or self.lock.locked():
            return
        late, self._late = self._late, {}
        for index, engine in enumerate(list(self.engines)):
            if engine.name in late and late[engine.name][0] == self._restarts[engine.name]:
                self._replace(index, engine.handle, late[engine.name][1])

    def _watch(self) -> None:
        while True:
            self._late = self._read_late()
            time.sleep(_POLL_S)

    def _read_late(self) -> dict[str, tuple[int, str]]:
        """Return name -> (generation, description) of each engine that its node agent reports as late."""

        from slurm_rl.node.hang_monitor import read_node_reports

        late = {}
        for report in read_node_reports(self.attempt):
            for row in report["late"]:
                name, _, generation = row["name"].partition(".")
                usual = f"at most {row['deadline_s']:g} s are usual"
                late[name] = int(generation or 0), f"no sign of life for {row['age_s']:g} s in {row['phase']}, {usual}"
        return late

    def _replace(self, index: int, handle: Any, cause: str) -> None:
        with self.lock:
            name = self.engines[index].name
            if self.engines[index].handle is not handle and name not in self._unverified:
                return  # another thread has replaced it
            self._is_restarting, start = True, time.monotonic()
            try:
                self._restart(index, cause)
            finally:
                self._is_restarting = False
            append_event(
                self.run_dir,
                "engine/replaced",
                attempt=self.attempt.number,
                engine=name,
                count=self._restarts[name],
                seconds=round(time.monotonic() - start, 1),
                cause=cause,
            )

    def _restart(self, index: int, cause: str) -> None:
        name = self.engines[index].name
        while True:
            self._unverified.add(name)
            self._restarts[name] += 1
            if self._restarts[name] > MAX_RESTARTS:
                self._suspect_node(index, name, cause)
                raise TrainingError(
                    f"{name} must stay alive: it was replaced {MAX_RESTARTS} times in this attempt",
                    seen=cause,
                    where="driver.log",
                )
            _kill(self.engines[index].handle)
            self.engines[index] = fresh = self.start(index, self._restarts[name])
            try:
                self.cluster.gather(
                    [(fresh, fresh.handle.ready.remote())], timeout_s=self.start_timeout_s, what="replacing an engine"
                )
                self.reload()
            except ActorLost as error:
                if error.actor != name:
                    raise
                cause = str(error)
                continue
            self._unverified.discard(name)
            return

    def _suspect_node(self, index: int, name: str, cause: str) -> None:
        from slurm_rl.node.hang_monitor import read_node_reports

        with contextlib.suppress(SlurmRLError, OSError, IndexError, StopIteration):
            rank = next(it.node for it in self.cluster.plan.actors if it.role == "rollout" and it.index == index)
            node = next(report["host"] for report in read_node_reports(self.attempt) if report["rank"] == rank)
            detail = f"{name} was replaced {MAX_RESTARTS} times: {cause}"
            finding = {"check": "engine", "value": detail, "strength": "soft"}
            append_event(self.run_dir, "node/unfit", node=node, attempt=self.attempt.number, **finding)


def _kill(handle: Any) -> None:
    """Kill an actor through Ray. A stopped process ignores it; its replacement kills it (node/processes.py)."""
    import ray

    with contextlib.suppress(Exception):  # already dead
        ray.kill(handle, no_restart=True)
