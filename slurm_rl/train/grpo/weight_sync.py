"""Weights from the policy to every engine, and the proof that they arrived.

Three things must agree after a sync: the version, the checksum of the bytes, and the logprobs of a
probe text under policy and engine. The last one is what catches a tensor that arrived but was not
used, such as a tied output layer that keeps its old weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.errors import WeightSyncError
from slurm_rl.train.grpo.cluster import Actor, Cluster
from slurm_rl.train.grpo.weights import HeldWeights, SentWeights
from slurm_rl.train.types import TokenPrompt


@dataclass(frozen=True)
class _Push:
    version: int
    said: list[tuple[Actor, Any]]
    """What each policy worker sent; rank 0 alone has it."""
    loads: list[tuple[Actor, Any]]
    """What each engine holds now."""


class WeightSync:
    """Sends the policy's weights through Ray's object store, once for all engines of a node; once `open`, directly."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Sequence[Actor],
        engines: Sequence[Actor],
        *,
        probe: TokenPrompt,
        tolerance: float,
        timeout_s: float,
    ) -> None:
        self.cluster, self.policy, self.engines = cluster, policy, engines
        self.sizes: list[int] | None = None
        self.probe, self.tolerance, self.timeout_s = probe, tolerance, timeout_s
        self._under_way: deque[_Push] = deque()

    def open(self, sizes: Sequence[int]) -> None:
        """From now on send from the policy's memory into the engines'; see transfer.py.

        Args:
            sizes: tensor-parallel ranks of each engine.
        """
        [address] = self.cluster.gather(
            [(self.policy[0], self.policy[0].handle.find_address.remote())],
            timeout_s=self.timeout_s,
            what="finding a port",
        )
        handles = [engine.handle for engine in self.engines]
        opened = [(worker, worker.handle.open_sender.remote(handles, list(sizes), address)) for worker in self.policy]
        self.cluster.gather(opened, timeout_s=self.timeout_s, what="opening the weight transfer")
        self.sizes = list(sizes)

    def push(self, version: int) -> None:
        """Send the weights as `version`; returns at once, and an engine takes them after what it was asked before."""
        if self.sizes is not None:
            sent = [(worker, worker.handle.send_state.remote(self.probe)) for worker in self.policy]
            # An argument that is a result makes the engine confirm after the policy has sent.
            confirmed = [
                (engine, engine.handle.confirm_weights.remote(version, sent[0][1], self.probe))
                for engine in self.engines
            ]
            self._under_way.append(_Push(version, sent, confirmed))
            return
        # Gathering sharded weights is collective: every rank must take part, rank 0 alone has them.
        packed = [
            (worker, worker.handle.pack_state.options(num_returns=2).remote(self.probe)) for worker in self.policy
        ]
        records = packed[0][1][0]
        loads = [(engine, engine.handle.load_weights.remote(version, records, self.probe)) for engine in self.engines]
        self._under_way.append(_Push(version, [(worker, references[1]) for worker, references in packed], loads))

    def verify(self, *, leave: int = 0) -> float:
        """Wait until all but the newest `leave` pushes have arrived; the largest difference of their probes.

        Raises:
            WeightSyncError: an engine does not hold what was sent.
        """
        difference = 0.0
        while len(self._under_way) > leave:
            push = self._under_way.popleft()
            results = self.cluster.gather(
                [*push.said, *push.loads], timeout_s=self.timeout_s, what="sending the weights", stoppable=False
            )
            sent: SentWeights = results[0]
            held: list[HeldWeights] = results[len(push.said) :]
            pairs = zip(self.engines, held, strict=True)
            difference = max(difference, *(self._compare(one.name, push.version, sent, has) for one, has in pairs))
        return difference

    def _compare(self, name: str, version: int, sent: SentWeights, held: HeldWeights) -> float:
        if held.version != version or any(value != sent.checksum for value in held.checksums):
            raise WeightSyncError(
                f"{name} must hold version {version} with SHA-256 {sent.checksum[:12]}",
                seen=f"version {held.version} with {', '.join(value[:12] for value in held.checksums)}",
                action="report a bug: the bytes changed on their way",
            )
        difference = max(abs(a - b) for a, b in zip(sent.probe, held.probe, strict=True))
        if not difference <= self.tolerance:
            raise WeightSyncError(
                f"{name} must agree with the policy to rollout.probe_tolerance={self.tolerance:g} on the probe",
                seen=f"a logprob difference of {difference:g}",
                action="if the dtype is bfloat16, raise rollout.probe_tolerance; else report a bug",
            )
        return difference
