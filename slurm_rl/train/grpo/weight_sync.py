"""Weights from the policy to every engine, and the proof that they arrived.

Three things must agree after a sync: the version, the checksum of the bytes, and the logprobs of a
probe text under policy and engine. The last one is what catches a tensor that arrived but was not
used, such as a tied output layer that keeps its old weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_rl.errors import WeightSyncError
from slurm_rl.train.grpo.cluster import Actor, Cluster


class WeightSync:
    """Sends the policy's weights through Ray's object store, once for all engines of a node."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Sequence[Actor],
        engines: Sequence[Actor],
        *,
        probe: Sequence[int],
        tolerance: float,
        timeout_s: float,
    ) -> None:
        self.cluster, self.policy, self.engines = cluster, policy, engines
        self.probe, self.tolerance, self.timeout_s = list(probe), tolerance, timeout_s

    def push(self, version: int) -> float:
        """Send the weights as `version`; returns the largest difference of the probe's logprobs.

        Raises:
            WeightSyncError: an engine does not hold what was sent.
        """
        # Gathering sharded weights is collective: every rank must take part, rank 0 alone has them.
        packed = [(worker, worker.handle.pack_state.options(num_returns=2).remote()) for worker in self.policy]
        records = packed[0][1][0]
        others = [(worker, references[1]) for worker, references in packed]
        [expected, *_] = self.cluster.gather(
            others, timeout_s=self.timeout_s, what="gathering the policy's weights", stoppable=False
        )
        loads = [(engine, engine.handle.load_weights.remote(version, records)) for engine in self.engines]
        received = self.cluster.gather(
            loads, timeout_s=self.timeout_s, what="loading weights into the engines", stoppable=False
        )
        for engine, checksums in zip(self.engines, received, strict=True):
            if any(value != expected for value in checksums):
                raise WeightSyncError(f"{engine.name} must receive the bytes that were sent", seen=str(checksums))
        return self._compare_probes(version)

    def _compare_probes(self, version: int) -> float:
        calls = [(actor, actor.handle.probe.remote(self.probe)) for actor in [*self.policy, *self.engines]]
        results = self.cluster.gather(calls, timeout_s=self.timeout_s, what="the weight probe", stoppable=False)
        wanted = results[0]
        largest = 0.0
        for engine, (held, logprobs) in zip(self.engines, results[len(self.policy) :], strict=True):
            difference = max(abs(a - b) for a, b in zip(wanted, logprobs, strict=True))
            largest = max(largest, difference)
            if held != version or not difference <= self.tolerance:
                raise WeightSyncError(
                    f"{engine.name} must hold version {version} and agree with the policy to "
                    f"rollout.probe_tolerance={self.tolerance:g} on the probe",
                    seen=f"version {held}, largest logprob difference {difference:g}",
                    action="if the dtype is bfloat16, raise rollout.probe_tolerance; else report a bug",
                )
        return largest
