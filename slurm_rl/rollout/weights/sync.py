"""Weights from the policy to every engine, and the proof that they arrived.

Three things must agree after a sync: the version, the checksum of the bytes, and the logprobs of a
probe text under policy and engine. The last one is what catches a tensor that arrived but was not
used, such as a tied output layer that keeps its old weights. It does so from the first sync on, since engines start
with random weights (rollout/vllm/random_weights.py) and not with those that the policy starts with.

Two programs that hold the same weights differ by rounding alone. In float32 that is 1e-6 to 1e-5. bfloat16 keeps 8
bits, so each layer changes what it passes on by some 2^-8, and L layers make logits of deviation s differ by about
2^-8 s sqrt(L). Measured on CPU on 64 random tokens, Qwen3 of random weights in bfloat16 against float32, the mean
difference of their logprobs is 0.5 to 0.8 times that, and the largest 3 to 4 times the mean:

    layers L              3       8      16     28     28
    logits' deviation s   0.3     1.6    2.3    3.2    5.1
    mean                  0.0013  0.009  0.020  0.047  0.088
    largest               0.0039  0.025  0.082  0.17   0.34

vLLM against torch, both in bfloat16, comes to the first column again; where both err apart it may be sqrt(2) of it. So
the bound for bfloat16 is that of s = 6, more than language models have. In the first column's model it catches all
weights (0.19), or those of the first layer (0.08), left behind by one AdamW step at 6e-4. What is wrong by less is not
seen at once, but grows with each step that a tensor stays behind.

A trained model has tokens that rounding moves much further: of 12 in the PPO example's (2 layers, logits of deviation
1.6), eleven by 0.0001 to 0.04 and one by 0.48, bfloat16 against float64 with the same weights; two steps later
vLLM's was 0.37 from torch's. Old weights move most tokens. So the mean is that of all but the eighth that differs most,
and the bound of a single one is wide.

The ways that they go:

    ObjectStore   Ray's object store, once for all engines of a node; whole weights or adapters
    Direct        from the policy's memory into the engines' (nccl, ipc, gloo)

To add one, write a class with the methods of `WeightTransport` and start it in build.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.errors import WeightSyncError
from slurm_rl.rollout.weights.weight_record import HeldWeights, SentWeights
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster
from slurm_rl.workers.worker_group import WorkerGroup

_FLOAT32_MEAN = 2e-4
_BFLOAT16_DEVIATION = 6.0
_LEFT_OUT = 1 / 8
"""Share of the tokens, those that differ most, that the mean is without."""
_LARGEST = 30.0
"""The largest difference may be so many times the bound of the mean."""


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

    needs_all: bool
    """The policy cannot go on while an engine is gone that it sends to."""

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

    needs_all = False

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
        backend: nccl, ipc or gloo.
    """

    needs_all = True

    def __init__(self, policy: WorkerGroup, engines: Sequence[Actor], sizes: Sequence[int], backend: str) -> None:
        self.policy, self.engines, self.sizes, self.backend = policy, engines, list(sizes), backend
        self._confirmed: list[Any] = []

    def open(self) -> None:
        address = self.policy.call("find_address")[0]
        handles = [engine.handle for engine in self.engines]
        self._confirmed = []
        self.policy.call("open_sender", self.backend, handles, self.sizes, address)

    def push(self, version: int, probe: TokenPrompt) -> Push:
        # An argument that is a result makes the policy send after all engines have confirmed the version before, and
        # them confirm after the policy has sent.
        sent = [(one, one.handle.send_weights.remote(probe, *self._confirmed)) for one in self.policy.workers]
        held = [(engine, engine.handle.confirm_weights.remote(version, sent[0][1], probe)) for engine in self.engines]
        self._confirmed = [confirmed for _, confirmed in held]
        return Push(version, sent, held)


def choose_tolerance(configured: float | None, dtype: str, num_layers: int) -> float:
    """Bound of `mean_of_most` of the probe's differences: rollout.weight_check_tolerance, or what rounding may make."""
    if configured is not None:
        return configured
    return _FLOAT32_MEAN if dtype == "float32" else 2**-8 * _BFLOAT16_DEVIATION * math.sqrt(num_layers)


def mean_of_most(differences: Sequence[float]) -> float:
    """Mean of all but the eighth that are largest; NaN where one of all is.

    >>> mean_of_most([0.1] * 7 + [0.9])
    0.1
    """
    if any(map(math.isnan, differences)):
        return math.nan
    most = sorted(differences)[: max(1, math.floor(len(differences) * (1 - _LEFT_OUT)))]
    return math.fsum(most) / len(most)


class WeightSync:
    """Sends the policy's weights by a transport, and waits until every engine has proven that it holds them.

    Args:
        tolerance: largest mean difference of the probe's logprobs, `mean_of_most`.
        dtype: of the model; what the error of a refused engine advises depends on it and on
        engine_args: names of vLLM's arguments that the user has set.
    """

    def __init__(
        self,
        cluster: Cluster,
        transport: WeightTransport,
        engines: Sequence[Actor],
        *,
        probe: TokenPrompt,
        tolerance: float,
        timeout_s: float,
        dtype: str = "float32",
        engine_args: Collection[str] = (),
        recover: Callable[[ActorLost], None] | None = None,
    ) -> None:
        self.cluster, self.transport, self.engines = cluster, transport, engines
        self.recover, self.version, self.difference = recover, -1, 0.0
        self.probe, self.tolerance, self.timeout_s = probe, tolerance, timeout_s
        self.dtype, self.engine_args = dtype, engine_args
        self._in_flight: deque[Push] = deque()
        self._agreed: dict[Any, str] = {}
        """Handle of an engine -> how well it agreed the last time."""

    def push(self, version: int) -> None:
        """Send the weights as `version`; returns at once."""
        self.version = version
        self._in_flight.append(self.transport.push(version, self.probe))

    def resend(self) -> None:
        """The newest version to all engines once more, proven by all: one of them has just been started.

        What was on its way to the others they have taken before.
        """
        self._in_flight.clear()
        if self.version >= 0:
            self.transport.open()
            self.push(self.version)
            self.difference = self._verify_next()

    def verify(self, *, leave: int = 0) -> float:
        """Wait until all but the newest `leave` pushes have arrived; the largest difference of their probes.

        Raises:
            WeightSyncError: an engine does not hold what was sent.
        """
        difference = 0.0
        while len(self._in_flight) > leave:
            try:
                difference = max(difference, self._verify_next())
            except ActorLost as lost:
                if self.recover is None or self.transport.needs_all:
                    raise
                self.recover(lost)  # which sends and proves the newest version
                difference = max(difference, self.difference)
        return difference

    def _verify_next(self) -> float:
        push = self._in_flight.popleft()
        results = self.cluster.gather(
            [*push.sent, *push.held], timeout_s=self.timeout_s, what="sending the weights", stoppable=False
        )
        sent: SentWeights = results[0]
        held: list[HeldWeights] = results[len(push.sent) :]
        pairs = zip(self.engines, held, strict=True)
        return max(self._compare(one, push.version, sent, has) for one, has in pairs)

    def _compare(self, engine: Actor, version: int, sent: SentWeights, held: HeldWeights) -> float:
        if held.version != version or set(held.checksums) != {sent.checksum}:
            raise WeightSyncError(
                f"{engine.name} must hold version {version} with checksum {sent.checksum}",
                seen=f"version {held.version} with {', '.join(held.checksums) or 'none'}",
                action="report a bug: the bytes changed on their way",
            )
        differences = [abs(a - b) for a, b in zip(sent.probe, held.probe, strict=True)]
        mean, largest = mean_of_most(differences), max(differences)
        # Written so that NaN is refused, too.
        if not (mean <= self.tolerance and largest <= _LARGEST * self.tolerance):
            before = self._agreed.get(engine.handle, "these are the first weights that it got")
            raise WeightSyncError(
                f"{engine.name} must agree with the policy on the logprobs of {len(differences)} tokens, on average "
                f"(but for the eighth that differs most) to rollout.weight_check_tolerance={self.tolerance:g} and "
                f"each to "
                f"{_LARGEST * self.tolerance:g}",
                seen=f"differences of {mean:g} on average and {largest:g} at most with version {version}; {before}",
                action=self._advise(2 * max(mean, largest / _LARGEST)),
            )
        self._agreed[engine.handle] = f"with version {version} it agreed to {mean:g} on average"
        return largest

    def _advise(self, enough: float) -> str:
        """Return how to find out why an engine disagrees; `enough` is a tolerance that would let it pass."""
        bug = "the engine does not use all of the weights that it received: report a bug"
        if math.isnan(enough):
            return "look for the tensor that is not finite, in the engine or in the policy"
        if self.engine_args:
            cause, test = "they are the cause", f"without rollout.engine_args ({', '.join(self.engine_args)})"
        elif self.dtype != "float32":
            cause, test = "rounding is the cause", "with model.dtype=float32"
        else:
            return f"{bug}, since float32 does not round by so much"
        allow = f"rollout.weight_check_tolerance={enough:.1g} allows it"
        return f"repeat the run {test}; if the engine agrees then, {cause} and {allow}; else {bug}"
