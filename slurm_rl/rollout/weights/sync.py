"""Weight sync from the policy to every engine, with a proof that the weights arrived and are in use.

After a sync three things must agree: the version, the checksum of the bytes, and the logprobs of a probe text under
policy and engine. The probe catches a tensor that arrived but is not used, such as a tied output layer that keeps its
old weights, from the first sync on: engines start with random weights (rollout/vllm/random_weights.py).

Tolerance of the probe. With equal weights, float32 differs by 1e-6 to 1e-5. In bfloat16 (8 bits) each layer adds a
relative error of 2^-8, so L layers shift logits of standard deviation s by about 2^-8 s sqrt(L). Measured on CPU with
64 random tokens, Qwen3 with random weights, bfloat16 against float32:

    layers L              3       8      16     28     28
    logits' deviation s   0.3     1.6    2.3    3.2    5.1
    mean                  0.0013  0.009  0.020  0.047  0.088
    largest               0.0039  0.025  0.082  0.17   0.34

vLLM against torch, both in bfloat16, gives the first column again. The bound for bfloat16 assumes s = 6, more than
language models have. In the first column's model it catches weights that are one AdamW step at 6e-4 behind: all of them
(0.19), or those of the first layer (0.08). Smaller errors grow with each step that a tensor stays behind.

In trained models rounding moves single tokens much further (0.48 for one of 12 in the PPO example), while old weights
move most tokens. So the mean leaves out the eighth of the tokens that differ most, and the bound of one token is wide.

    ObjectStore   Ray's object store, one copy per node; all weights, or adapters that the engines swap
    Direct        from the policy's memory into the engines' (nccl, ipc, gloo)

To add a transport, write a class with the methods of `WeightTransport` and start it in build.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slurm_rl.errors import WeightSyncError
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster

if TYPE_CHECKING:
    from slurm_rl.algorithms.sequences import TokenPrompt
    from slurm_rl.rollout.weights.weight_record import HeldWeights, SentWeights
    from slurm_rl.workers.train_workers import WorkerGroup

_FLOAT32_MEAN = 2e-4
_BFLOAT16_DEVIATION = 6.0
_LEFT_OUT = 1 / 8
"""Share of the tokens with the largest differences that the mean leaves out."""
_LARGEST = 30.0
"""Bound of the largest difference, as a multiple of the bound of the mean."""


@dataclass(frozen=True)
class Push:
    """One version of the weights in transfer."""

    version: int
    sent: list[tuple[Actor, Any]]
    """`SentWeights` of each policy rank; only rank 0's is used."""
    held: list[tuple[Actor, Any]]
    """`HeldWeights` of each engine."""


class WeightTransport(Protocol):
    """Starts a push; `WeightSync` waits for it and compares the reports of both sides."""

    needs_all: bool
    """Whether the policy blocks if one of the engines is lost during a push."""

    def open(self) -> None:
        """Set up the transport; called once the engines are up, before the first push."""

    def push(self, version: int, probe: TokenPrompt) -> Push:
        """Send the weights as `version` to every engine and return at once.

        A synchronous engine loads them after its earlier calls and before its later ones.

        Args:
            probe: both sides report its logprobs.
        """


class ObjectStore:
    """Transport through Ray's object store. Only rank 0 has the records, but all ranks take part in gathering them."""

    needs_all = False

    def __init__(self, policy: Sequence[Actor], engines: Sequence[Actor]) -> None:
        self.policy, self.engines = policy, engines

    def open(self) -> None:
        """No setup needed."""

    def push(self, version: int, probe: TokenPrompt) -> Push:
        packed = [(worker, worker.handle.pack_weights.options(num_returns=2).remote(probe)) for worker in self.policy]
        records = packed[0][1][0]
        held = [(engine, engine.handle.load_weights.remote(version, records, probe)) for engine in self.engines]
        return Push(version, [(worker, references[1]) for worker, references in packed], held)


class Direct:
    """Transport from the policy's memory into the engines', in one process group.

    Args:
        sizes: number of tensor-parallel ranks of each engine.
        backend: nccl, ipc or gloo.
        in_order: engines execute one call at a time. The policy then sends when their batch is done, because a rank
            that waits inside a collective would exceed its timeout.
    """

    needs_all = True

    def __init__(
        self,
        policy: WorkerGroup,
        engines: Sequence[Actor],
        sizes: Sequence[int],
        backend: str,
        *,
        in_order: bool = False,
    ) -> None:
        self.policy, self.engines, self.sizes, self.backend = policy, engines, list(sizes), backend
        self.in_order = in_order
        self._confirmed: list[Any] = []

    def open(self) -> None:
        address = self.policy.call("find_address")[0]
        handles = [engine.handle for engine in self.engines]
        self._confirmed = []
        self.policy.call("open_sender", self.backend, handles, self.sizes, address)

    def push(self, version: int, probe: TokenPrompt) -> Push:
        # Results as arguments order the calls: the policy sends after all engines have confirmed the previous version,
        # and they confirm after the policy has sent.
        idle = [engine.handle.ready.remote() for engine in self.engines] if self.in_order else []
        sent = [(one, one.handle.send_weights.remote(probe, *self._confirmed, *idle)) for one in self.policy.workers]
        held = [(engine, engine.handle.confirm_weights.remote(version, sent[0][1], probe)) for engine in self.engines]
        self._confirmed = [confirmed for _, confirmed in held]
        return Push(version, sent, held)


def choose_tolerance(configured: float | None, dtype: str, num_layers: int) -> float:
    """Return the bound of the trimmed mean of the probe's differences, by default from the rounding of the dtype."""
    if configured is not None:
        return configured
    return _FLOAT32_MEAN if dtype == "float32" else 2**-8 * _BFLOAT16_DEVIATION * math.sqrt(num_layers)


def trimmed_mean(differences: Sequence[float]) -> float:
    """Return the mean without the largest eighth; NaN if any value is NaN.

    >>> trimmed_mean([0.1] * 7 + [0.9])
    0.1
    """
    if any(map(math.isnan, differences)):
        return math.nan
    most = sorted(differences)[: max(1, math.floor(len(differences) * (1 - _LEFT_OUT)))]
    return math.fsum(most) / len(most)


class WeightSync:
    """Sends the policy's weights to the engines and verifies that each of them holds and uses them.

    Args:
        tolerance: bound of the trimmed mean of the probe's logprob differences.
        dtype: dtype of the model; with `engine_args` it determines the advice of an error.
        engine_args: names of vLLM's arguments that the user has set.
        recover: replaces a lost engine.
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
        self.num_bytes = 0
        """Size of the last verified push, per engine."""
        self._in_flight: deque[Push] = deque()
        self._agreed: dict[Any, str] = {}
        """Result of the last comparison, by handle of the engine."""

    def push(self, version: int) -> None:
        """Send the weights as `version` and return at once."""
        self.version = version
        self._in_flight.append(self.transport.push(version, self.probe))

    def resend(self) -> None:
        """Send the newest version to all engines again and verify it, after one of them was restarted.

        The other engines have already loaded the versions in flight.
        """
        self._in_flight.clear()
        if self.version >= 0:
            self.transport.open()
            self.push(self.version)
            self.difference = self._verify_next()

    def verify(self, *, leave: int = 0) -> float:
        """Wait for weight pushes and return the largest logprob difference on the probe.

        Args:
            leave: number of newest pushes that may stay in flight.

        Raises:
            WeightSyncError: an engine does not hold the weights that were sent.
        """
        difference = 0.0
        while len(self._in_flight) > leave:
            try:
                difference = max(difference, self._verify_next())
            except ActorLost as lost:
                if self.recover is None or self.transport.needs_all:
                    raise
                self.recover(lost)  # sends and verifies the newest version
                difference = max(difference, self.difference)
        return difference

    def _verify_next(self) -> float:
        push = self._in_flight.popleft()
        results = self.cluster.gather(
            [*push.sent, *push.held], timeout_s=self.timeout_s, what="sending the weights", stoppable=False
        )
        sent: SentWeights = results[0]
        self.num_bytes = sent.num_bytes
        held: list[HeldWeights] = results[len(push.sent) :]
        pairs = zip(self.engines, held, strict=True)
        return max(self._compare(one, push.version, sent, report) for one, report in pairs)

    def _compare(self, engine: Actor, version: int, sent: SentWeights, held: HeldWeights) -> float:
        if held.version != version or set(held.checksums) != {sent.checksum}:
            raise WeightSyncError(
                f"{engine.name} must hold version {version} with checksum {sent.checksum}",
                seen=f"version {held.version} with {', '.join(held.checksums) or 'none'}",
                action="report a bug: the bytes changed in transit",
            )
        differences = [abs(a - b) for a, b in zip(sent.probe, held.probe, strict=True)]
        mean, largest = trimmed_mean(differences), max(differences)
        # Written so that NaN fails, too.
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
        """Return the next step to find the cause of a disagreement; `enough` is a tolerance that would pass."""
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
