"""The policy's side of a weight sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.run import RunConfig
from slurm_rl.workers.ray_nodes import find_address

if TYPE_CHECKING:
    import torch

    from slurm_rl.models.policy import PolicyEngine
    from slurm_rl.rollout.weights.weight_record import SentWeights, WeightRecord


class WeightSender:
    """Methods of a policy rank that send its weights; see `WeightTransport`."""

    config: RunConfig
    device: torch.device
    engine: PolicyEngine
    sender: Any = None
    """Sender of the transfer group; None before it is opened."""

    def pack_weights(self, probe: TokenPrompt) -> tuple[list[WeightRecord], SentWeights]:
        """Return the changed weights: all weights, or the adapters that engines swap. Only rank 0 has records."""
        from slurm_rl.models.distributed import get_rank
        from slurm_rl.rollout.weights.weight_record import SentWeights, pack_weights

        swaps = self.config.rollout.weight_transfer == "adapters"
        read = self.engine.adapters_to_send if swaps else self.engine.state_to_send
        state = read(self.device)  # on every rank: gathering is collective
        if get_rank() == 0:
            records, checksum = pack_weights(state)
        else:
            records, checksum = [], ""
            for _ in state:
                pass
        sent = SentWeights(checksum, self._probe(probe), sum(record.data.nbytes for record in records))
        self._free_gpus()
        return records, sent

    def find_address(self) -> tuple[str, int]:
        """Return a rendezvous for a transfer group on this node."""
        return find_address()

    def open_sender(self, backend: str, engines: Sequence[Any], sizes: Sequence[int], address: tuple[str, int]) -> None:
        """Join a transfer group with these engines.

        Args:
            sizes: number of ranks of each engine.
        """
        from slurm_rl.models.distributed import get_rank
        from slurm_rl.rollout.vllm.transfer import EngineClient, open_sender

        client = EngineClient(engines, sizes, self.config.trainer.step_timeout_s)
        self.sender = open_sender(backend, get_rank(), self.engine, client, 1 + sum(sizes), address)

    def send_weights(self, probe: TokenPrompt, *_: Any) -> SentWeights:
        """Send all weights through the group.

        Args:
            _: results to wait for.
        """
        import torch

        from slurm_rl.rollout.weights.weight_record import SentWeights

        # First, because engines pause from the first tensor until the weights are confirmed.
        logprobs = self._probe(probe)
        if torch.cuda.is_available():
            # vLLM's streams do not wait for the optimizer's kernels.
            torch.cuda.synchronize()
        self._free_gpus()  # the first tensor wakes the engines
        self.sender.send_weights()
        checksum = self.sender.source.checksum
        sent = SentWeights(checksum.hexdigest(), logprobs, checksum.num_bytes)
        self._free_gpus()
        return sent

    def _free_gpus(self) -> None:
        """Release torch's cache on GPUs shared with engines, on all ranks before rank 0 wakes the engines."""
        import torch

        from slurm_rl.models.distributed import gather_objects

        if self.config.rollout.colocate:
            torch.cuda.empty_cache()
            gather_objects(None)

    def _probe(self, prompt: TokenPrompt) -> list[float]:
        """Return the logprob of each token after the first, at temperature 1."""
        token_ids = np.asarray(prompt.token_ids, dtype=np.int64)
        sequence = TrainSequence(token_ids=token_ids, trained_from=1, images=prompt.images)
        self.engine.module.eval()
        reader = replace(self.engine.reader, chunk_tokens=None, prefix_sharing=False)
        return [float(value) for value in reader.compute_logprobs([sequence], 1.0)[0]]
