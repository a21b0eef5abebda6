"""A policy rank's side of a sync: what it sends, and what an engine that holds it must say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_rl.config.run import RunConfig
from slurm_rl.math.sequences import TokenPrompt, TrainSequence
from slurm_rl.rl.weights.weight_record import SentWeights, WeightRecord, checksum, pack_weights
from slurm_rl.rl.workers.ray_nodes import find_address

if TYPE_CHECKING:
    from slurm_rl.engine.policy import PolicyEngine


class WeightSource:
    """Mixed into the policy worker; every rank gets each call, since gathering sharded weights takes all of them."""

    config: RunConfig
    engine: PolicyEngine
    sender: Any = None

    def pack_weights(self, probe: TokenPrompt) -> tuple[list[WeightRecord], SentWeights]:
        """What changes of the weights: all of them, or the adapters alone. Rank 0 alone has records."""
        adapted = self.config.model.lora is not None
        records = pack_weights(self.engine.adapter_state() if adapted else self.engine.full_state())
        return records, self._describe(checksum(records), probe)

    def find_address(self) -> tuple[str, int]:
        """Where a transfer group can meet on this node."""
        return find_address()

    def open_sender(self, engines: Sequence[Any], sizes: Sequence[int], address: tuple[str, int]) -> None:
        """Join a transfer group with these engines, of so many ranks each."""
        from slurm_rl.engine.distributed import get_rank
        from slurm_rl.rl.rollout.vllm.transfer import EngineClient, open_sender

        client = EngineClient(engines, sizes, self.config.trainer.step_timeout_s)
        backend = self.config.rollout.weight_transfer
        self.sender = open_sender(backend, get_rank(), self.engine, client, 1 + sum(sizes), address)

    def send_weights(self, probe: TokenPrompt) -> SentWeights:
        """Send all weights through the group."""
        from slurm_rl.engine.distributed import finish_queued_work, free_cached_memory

        # vLLM packs tensors on streams of its own, which do not wait for the optimizer's kernels.
        finish_queued_work()
        if self.config.rollout.colocate:
            free_cached_memory()  # the first thing that is sent wakes an engine up beside us
        self.sender.send_weights()
        return self._describe(getattr(self.sender, "checksum", None) or "", probe)

    def _describe(self, digest: str, probe: TokenPrompt) -> SentWeights:
        from slurm_rl.engine.distributed import free_cached_memory

        sent = SentWeights(digest, self._probe(probe))
        if self.config.rollout.colocate:
            free_cached_memory()  # an engine wakes up beside us
        return sent

    def _probe(self, prompt: TokenPrompt) -> list[float]:
        """Logprob of each token after the first, at temperature 1."""
        token_ids = np.asarray(prompt.token_ids, dtype=np.int64)
        sequence = TrainSequence(token_ids=token_ids, trained_from=1, images=prompt.images)
        self.engine.module.eval()
        reader = replace(self.engine.reader, chunk_tokens=None, share_prompts=False)
        return [float(value) for value in reader.compute_logprobs([sequence], 1.0)[0]]
