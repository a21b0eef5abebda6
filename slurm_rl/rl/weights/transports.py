"""The ways of weights from the policy's ranks into the engines.

    ObjectStore   Ray's object store, once for all engines of a node; whole weights or adapters
    Direct        from the policy's memory into the engines' (rollout.weight_transfer = nccl, ipc, gloo)

To add one, write a class with the methods of `WeightTransport` and start it in build.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.rl.workers.ray_driver import Actor
from slurm_rl.rl.workers.worker_group import WorkerGroup


@dataclass(frozen=True)
class Push:
    """One version of the weights on its way."""

    version: int
    sent: list[tuple[Actor, Any]]
    """`SentWeights` of each policy rank; rank 0's counts."""
    held: list[tuple[Actor, Any]]
    """`HeldWeights` of each engine."""


class WeightTransport(Protocol):
    """Starts a push; `WeightSync` waits for it and compares what both sides say."""

    def open(self) -> None:
        """Once, when the engines are up and before the first push."""

    def push(self, version: int, probe: TokenPrompt) -> Push:
        """Send the weights as `version` to every engine; returns at once.

        An engine takes them after what it was asked for before, and before what it is asked for afterwards.

        Args:
            probe: both sides say its logprobs under the weights they have.
        """


class ObjectStore:
    """Through Ray's object store. Rank 0 alone has the records, but all ranks take part in gathering them."""

    def __init__(self, policy: Sequence[Actor], engines: Sequence[Actor]) -> None:
        self.policy, self.engines = policy, engines

    def open(self) -> None:
        """Nothing to prepare."""

    def push(self, version: int, probe: TokenPrompt) -> Push:
        packed = [(worker, worker.handle.pack_weights.options(num_returns=2).remote(probe)) for worker in self.policy]
        records = packed[0][1][0]
        held = [(engine, engine.handle.load_weights.remote(version, records, probe)) for engine in self.engines]
        return Push(version, [(worker, references[1]) for worker, references in packed], held)


class Direct:
    """From the policy's memory into the engines', in one process group with them.

    Args:
        sizes: tensor-parallel ranks of each engine.
    """

    def __init__(self, policy: WorkerGroup, engines: Sequence[Actor], sizes: Sequence[int]) -> None:
        self.policy, self.engines, self.sizes = policy, engines, list(sizes)

    def open(self) -> None:
        address = self.policy.call("find_address")[0]
        self.policy.call("open_sender", [engine.handle for engine in self.engines], self.sizes, address)

    def push(self, version: int, probe: TokenPrompt) -> Push:
        sent = [(worker, worker.handle.send_weights.remote(probe)) for worker in self.policy.workers]
        # An argument that is a result makes the engine confirm after the policy has sent.
        held = [(engine, engine.handle.confirm_weights.remote(version, sent[0][1], probe)) for engine in self.engines]
        return Push(version, sent, held)
