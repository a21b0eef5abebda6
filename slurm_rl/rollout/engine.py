"""The interface of a rollout engine. Each engine is a Ray actor.

To add an engine, write a class with the methods of `RolloutEngine` and start it in trainers/grpo/build.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from slurm_rl.algorithms.sequences import TokenPrompt
from slurm_rl.data.groups import SamplingSpec, Trajectory
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.rollout.response import Response

if TYPE_CHECKING:
    from slurm_rl.rollout.weights.weight_record import HeldWeights, WeightRecord


class GenerationRequest(NamedTuple):
    """A request for one response."""

    name: str
    """Unique among the requests in flight; of an episode, its name."""
    token_ids: bytes
    """Prompt, int32."""
    seed: int
    """Determines all random numbers of the response."""
    spec: SamplingSpec
    tools: ToolSyntax | None = None
    """How to parse tool calls if the request brings its own tools; None: the run's tools."""

    @property
    def prompt(self) -> TokenPrompt:
        return TokenPrompt(token_ids=array("i", self.token_ids).tolist())


Generated: TypeAlias = tuple[str, Response]
"""Name of a request, and its response."""
Rejected: TypeAlias = tuple[str, str]
"""Name of a request that the engine rejects, and the reason."""


class RolloutEngine(Protocol):
    """Samples completions, takes new weights and proves which weights it holds.

    The actor executes calls one at a time, in the order in which they were made: this orders requests and weights.
    """

    def ready(self) -> bool:
        """Return once the model is loaded."""

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Trajectory]]:
        """Sample `spec.num_completions` for each prompt, in order. The same call repeats bit for bit.

        Args:
            seeds: one per prompt, in 0 .. 2^63 - 1; they determine all random numbers.
        """

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        """Load all weights, or swap adapters, and report the weights held."""

    def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        """Run a step of a direct weight transfer on every tensor-parallel rank."""

    def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        """Report the weights held after a direct transfer.

        Args:
            sent: result of the policy's send; as an argument it delays this call until the send is done.
        """

    def sleep(self) -> None:
        """Free the GPU memory until the next weights arrive. No-op on an engine with its own GPUs."""


class AsyncRolloutEngine(Protocol):
    """An engine that takes requests at any time (`rollout.inflight_weight_updates`, `env.schedule=async`,
    `env.agent_command`).

    Its methods are coroutines that run concurrently. It has those of `RolloutEngine`, with two differences: `generate`
    does not repeat bit for bit, and new weights pause the requests in flight, which then continue with them.
    """

    async def submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        """Start requests; `collect` returns the results.

        Args:
            client: name of the caller.
        """

    async def collect(self, client: str, wait_s: float, delay_s: float) -> tuple[list[Generated], list[Rejected]]:
        """Return the requests that finished since the client's last call; wait up to `wait_s` for the first result.

        Args:
            delay_s: wait so long after the first result for others to batch with it.
        """
