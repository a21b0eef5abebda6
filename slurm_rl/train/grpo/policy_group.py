"""All policy workers as one: work is spread over them, results come back in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.train import OptimConfig
from slurm_rl.train.grpo.cluster import Actor, Cluster
from slurm_rl.train.math.packing import distribute
from slurm_rl.train.types import FloatArray, TrainSequence


class PolicyGroup:
    """The data-parallel ranks of the policy."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Sequence[Actor],
        model_path: str,
        micro_batch_tokens: int,
        timeout_s: float,
        *,
        references: Sequence[Actor] = (),
    ) -> None:
        """Args:
        references: actors that hold the reference apart from the policy; empty: its workers hold it.
        """
        self.references = references or workers
        self.cluster, self.workers, self.model_path = cluster, workers, model_path
        self.micro_batch_tokens, self.timeout_s = micro_batch_tokens, timeout_s

    @property
    def holds_reference(self) -> bool:
        """The policy's own processes answer for the reference."""
        return self.references is self.workers

    def train_policy(
        self, sequences: Sequence[TrainSequence], algorithm: AlgorithmConfig, lr: float
    ) -> dict[str, float]:
        """One optimizer step; every rank returns the same totals."""
        shares = self._spread(sequences)
        return self._call("training", lambda rank, it: it.train_policy.remote(shares[rank], algorithm, lr))[0]

    def train_answers(self, sequences: Sequence[TrainSequence], lr: float) -> dict[str, float]:
        shares = self._spread(sequences)
        return self._call("the warm-up", lambda rank, it: it.train_answers.remote(shares[rank], lr))[0]

    def reference_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """One array a sequence, in the order of the sequences."""
        return self._logprobs(
            sequences, "reference logprobs", lambda it, share: it.reference_logprobs.remote(share), self.references
        )

    def policy_logprobs(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """The same under the policy as it is."""
        return self._logprobs(
            sequences, "policy logprobs", lambda it, share: it.policy_logprobs.remote(share), self.workers
        )

    def _logprobs(
        self, sequences: Sequence[TrainSequence], what: str, start: Callable[[Any, Any], Any], actors: Sequence[Actor]
    ) -> list[FloatArray]:
        places = self._places(sequences, len(actors))
        shares = self._spread(sequences, len(actors))
        results = self._call(what, lambda rank, it: start(it, shares[rank]), actors)
        found: list[Any] = [None] * len(sequences)
        for indices, arrays in zip(places, results, strict=True):
            for index, array in zip(
                (i for batch in indices for i in batch), (a for batch in arrays for a in batch), strict=True
            ):
                found[index] = array
        return found

    def use_optimizer(self, optim: OptimConfig) -> None:
        self._call("a new optimizer", lambda _, it: it.use_optimizer.remote(optim))

    def load_reference(self, model_path: str) -> None:
        self._call("loading the reference", lambda _, it: it.load_reference.remote(model_path), self.references)

    def save(self, folder: Path, *, background: bool) -> list[Path]:
        """Save the policy; the files that workers are still writing, from a copy, when this returns."""
        pending = self._call("saving", lambda _, it: it.save.remote(folder, background))
        return [path for paths in pending for path in paths]

    def load(self, folder: Path) -> None:
        self._call("loading a checkpoint", lambda _, it: it.load.remote(folder))

    def export(self, folder: Path) -> None:
        self._call("exporting the model", lambda _, it: it.export.remote(folder))

    def export_adapter(self, folder: Path) -> None:
        self._call("exporting the adapters", lambda _, it: it.export_adapter.remote(folder))

    def _call(self, what: str, start: Callable[[int, Any], Any], actors: Sequence[Actor] | None = None) -> list[Any]:
        calls = [(actor, start(rank, actor.handle)) for rank, actor in enumerate(actors or self.workers)]
        # Weights may be half changed while these run; a stop signal waits for their end.
        return self.cluster.gather(calls, timeout_s=self.timeout_s, what=what, stoppable=False)

    def _places(self, sequences: Sequence[TrainSequence], num_parts: int) -> list[list[list[int]]]:
        if not sequences:
            # An optimizer step without a gradient; the workers need something to call it with.
            return [[[]] for _ in range(num_parts)]
        lengths = [len(sequence.token_ids) for sequence in sequences]
        return distribute(lengths, num_parts, self.micro_batch_tokens)

    def _spread(
        self, sequences: Sequence[TrainSequence], num_parts: int | None = None
    ) -> list[list[list[TrainSequence]]]:
        places = self._places(sequences, num_parts or len(self.workers))
        return [[[sequences[i] for i in batch] for batch in share] for share in places]
