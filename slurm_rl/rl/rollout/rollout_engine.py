"""What the loop asks of a rollout engine, written down: each runs as a Ray actor.

To sample with another program, write a class with these methods below rl/rollout/<its name>/ and start it in
build.py; nothing else of this project knows what an engine is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from slurm_rl.math.sequences import TokenPrompt
from slurm_rl.rl.groups import Completion, SamplingSpec
from slurm_rl.rl.weights.weight_record import HeldWeights, WeightRecord


class RolloutEngine(Protocol):
    """Samples completions of token ids, takes weights and proves which ones it holds."""

    def ready(self) -> bool:
        """Returns once the model is loaded."""

    def generate(
        self, prompts: Sequence[TokenPrompt], seeds: Sequence[int], spec: SamplingSpec
    ) -> list[list[Completion]]:
        """Sample `spec.num_completions` for each prompt, in order. The same call repeats in every bit, unless the
        engine takes requests while others are in flight (`rollout.continuous`).

        Args:
            seeds: one a prompt, in 0 .. 2^63 - 1; they alone decide the random numbers, not the rest of the batch.
        """

    def load_weights(self, version: int, records: Sequence[WeightRecord], probe: TokenPrompt) -> HeldWeights:
        """Take whole weights, or adapters over the base; then say what is held."""

    def call_workers(self, method: str, arguments: dict[str, Any]) -> None:
        """A step of a direct transfer, on every tensor-parallel rank."""

    def confirm_weights(self, version: int, sent: Any, probe: TokenPrompt) -> HeldWeights:
        """After a direct transfer: what is held. `sent` makes it come after the policy's sending."""

    def sleep(self) -> None:
        """Leave the GPUs to the policy until the next weights; nothing where the engine has GPUs of its own."""
