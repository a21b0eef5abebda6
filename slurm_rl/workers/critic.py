"""The critic: workers that compute values per token."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from slurm_rl.algorithms.advantages import explained_variance, value_loss
from slurm_rl.algorithms.policy_loss import BatchLoss
from slurm_rl.algorithms.schedule import derive_seed
from slurm_rl.algorithms.sequences import FloatArray, PackedBatch, TrainSequence
from slurm_rl.algorithms.totals import add_totals
from slurm_rl.config.run import RunConfig
from slurm_rl.rewards.classifier import require_loadable, score_all, specify_model
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult, build_result
from slurm_rl.workers.ray_nodes import find_address
from slurm_rl.workers.train_workers import MicroBatches, TrainWorker, WorkerGroup, WorkerRank

if TYPE_CHECKING:
    from slurm_rl.models.reward_model import ScoreStatistics
    from slurm_rl.models.row_check import RowCheck


class CriticWorker(TrainWorker):
    """One rank of the critic, and a reward model if it shares the device. Runs as a Ray actor."""

    def __init__(self, config: RunConfig, place: WorkerRank) -> None:
        self.config, self.place = config, place

    def find_rendezvous(self) -> tuple[str, int]:
        """Return the rendezvous of rank 0: the planned port on the head node, a free port elsewhere."""
        place = self.place
        return (place.master_address, place.master_port) if place.master_port else find_address()

    def build(self, rendezvous: tuple[str, int], model_path: str, init_from: str | None) -> RowCheck:
        """Load architecture and tokenizer of `model_path`, and weights of `init_from` if it is set."""
        from slurm_rl.models.distributed import init_process_group
        from slurm_rl.models.policy import PolicyEngine

        place = self.place
        init_process_group(place.rank, place.world_size, *rendezvous, timeout_s=self.config.trainer.step_timeout_s)
        self.engine = PolicyEngine(
            model_path,
            # Without adapters: the value head is new.
            self.config.model.model_copy(update={"init_from": init_from, "lora": None}),
            self.config.policy.model_copy(update={"num_workers": place.world_size, "num_threads": place.num_threads}),
            self.config.critic.optim,
            temperature=1.0,
            score_seed=derive_seed(self.config.seed, "critic"),
        )
        self.unit = read_unit(self.config)
        if self.config.reward.model.beside_critic:
            require_loadable(self._specify_rewards())
        return self.engine.rows

    def values(self, micro_batches: MicroBatches) -> list[list[FloatArray]]:
        """Return the values at the trained positions."""
        found = self.engine.compute_scores(micro_batches)
        return found if self.unit is None else [[self.unit.normalize(values) for values in batch] for batch in found]

    def train(self, micro_batches: MicroBatches, clip: float | None, lr: float) -> dict[str, float]:
        """Take one optimizer step of the value loss."""
        return self.engine.train(micro_batches, build_critic_loss(clip, self.unit), lr)

    def rewards(self, items: Sequence[RewardItem]) -> list[dict[str, float] | Failure]:
        """Return the scores of reward.model.path for each completion, on this worker's device."""
        return score_all(self._specify_rewards(), items)

    def _specify_rewards(self) -> str:
        from slurm_rl.models.distributed import get_device

        model = self.config.reward.model.model_copy(update={"device": str(get_device())})
        # On CPU the two models of this process share its threads.
        num_cores = len(os.sched_getaffinity(0))
        num_sharing = max(1, num_cores // (self.place.num_threads or num_cores))
        return specify_model(model, num_sharing)


class Critic:
    """Ranks of the critic; values are read one token earlier than logprobs."""

    def __init__(self, workers: WorkerGroup) -> None:
        self.workers = workers
        self.is_built = False
        """Whether the critic is loaded; it is loaded after the warm-up, from the warmed-up policy."""

    def build(self, model_path: str, init_from: str | None) -> RowCheck:
        place = self.workers.call("find_rendezvous")[0]
        found = self.workers.call("build", place, model_path, init_from)
        self.is_built = True
        return self.workers.note_rows(found)

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Score by the reward models in the critic's processes; see `Scorer`."""
        outcomes = self.workers.deal("rewards", items)
        return [build_result(item, outcome, {"model": 1.0}) for item, outcome in zip(items, outcomes, strict=True)]

    def values(self, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
        """Return the expected return before each token of each completion, [num_trained] each."""
        return self.workers.compute("values", [read_before(sequence) for sequence in sequences])

    def train(self, batches: Sequence[Sequence[TrainSequence]], clip: float | None, lr: float) -> dict[str, float]:
        """Take one optimizer step per batch; return metrics over all of them."""
        totals: dict[str, float] = {}
        for batch in batches:
            add_totals(totals, self.workers.train("train", [read_before(sequence) for sequence in batch], clip, lr))
        num_tokens = max(sum(sequence.num_trained for batch in batches for sequence in batch), 1)
        return {
            "critic/loss": totals["loss"] / len(batches),
            "critic/grad_norm": totals["grad_norm"] / len(batches),
            "critic/clip_fraction": totals.get("clipped", 0.0) / num_tokens,
            "critic/lr": lr,
        }


def read_before(sequence: TrainSequence) -> TrainSequence:
    """Return the sequence with each trained position moved one token back, where the critic's value is read.

    The value before the first token of a turn is read at the last token of the environment.
    """
    return TrainSequence(
        token_ids=sequence.token_ids,
        trained_from=sequence.trained_from - 1,
        trained=sequence.positions - 1,
        weight=sequence.weight,
        old_values=sequence.old_values,
        returns=sequence.returns,
        images=sequence.images,
    )


def read_unit(config: RunConfig) -> ScoreStatistics | None:
    """Return the normalization of the reward model that the critic starts from; None if its scores are not normalized.

    Without it, the first values would be off by the mean of the rewards.
    """
    from transformers import AutoConfig

    from slurm_rl.models.reward_model import read_score_statistics

    path = config.critic.init_from
    if path is None or not config.reward.model.normalize:
        return None
    found = AutoConfig.from_pretrained(path, trust_remote_code=config.model.trust_remote_code)
    return read_score_statistics(found, path) if hasattr(found, "mean") else None


def build_critic_loss(clip: float | None, unit: ScoreStatistics | None = None) -> BatchLoss:
    """Return the clipped value loss; token weights come with the batch.

    Args:
        unit: converts the model's output to a value.
    """

    def compute(batch: PackedBatch, values: Tensor, _: Tensor) -> tuple[Tensor, dict[str, float]]:
        assert batch.old_values is not None and batch.returns is not None
        values = values if unit is None else unit.normalize(values)
        token = value_loss(values, batch.old_values, batch.returns, clip)
        return (token.loss * batch.weights).sum(), {"clipped": float(token.clipped.sum())}

    return compute


def value_metrics(sequences: Sequence[TrainSequence]) -> dict[str, float]:
    """Return metrics of the values before this batch was learned."""
    values = [sequence.old_values for sequence in sequences if sequence.old_values is not None]
    returns = [sequence.returns for sequence in sequences if sequence.returns is not None]
    if not sum(map(len, values)):
        return {}
    return {
        "critic/value_mean": float(np.mean(np.concatenate(values))),
        "critic/explained_variance": explained_variance(values, returns),
    }
