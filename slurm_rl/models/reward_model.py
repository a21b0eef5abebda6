"""Hugging Face's sequence classifiers with one label, as reward models on packed rows.

config.json has `mean` and `std` of its scores, under OpenRLHF's names (trainer/rm_trainer.py and
`--reward.normalize_enable`), and `scores_chats` and `chat_template_kwargs` of its training.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from slurm_rl.algorithms.sequences import FloatArray

Scores = TypeVar("Scores", Tensor, FloatArray)


def score_every_token(model: PreTrainedModel) -> None:
    """Make the model return the score after each token, [B, T, 1], instead of the last one; a packed row has many last
    tokens."""
    kind = type(model)

    def forward(self: Any, input_ids: Any = None, **fields: Any) -> TokenClassifierOutput:
        hidden = getattr(self, self.base_model_prefix)(input_ids=input_ids, **fields).last_hidden_state
        return TokenClassifierOutput(logits=self.score(hidden))

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def allow_new_head(loaded: dict[str, Any]) -> bool:
    """Accept a language model: remove score and lm_head from the misfits; return whether the score head is missing."""
    lacking = [name for name in loaded["missing_keys"] if name.startswith("score.")]
    loaded["missing_keys"] = [name for name in loaded["missing_keys"] if name not in lacking]
    loaded["unexpected_keys"] = [name for name in loaded["unexpected_keys"] if not name.startswith("lm_head.")]
    return bool(lacking)


def draw_head(model: Any, seed: int) -> None:
    """Initialize a new score head; the same seed gives the same weights on every rank."""
    head = model.score.weight
    std = model.config.get_text_config().initializer_range
    drawn = torch.empty(head.shape).normal_(std=std, generator=torch.Generator().manual_seed(seed))
    model.score.weight = nn.Parameter(drawn.to(head.dtype))


@dataclass(frozen=True)
class ScoreStatistics:
    """Mean and deviation of a reward model's scores over chosen and rejected answers."""

    mean: float
    std: float

    def normalize(self, scores: Scores) -> Scores:
        return (scores - self.mean) / self.std


def describe_scores(
    config: PreTrainedConfig, statistics: ScoreStatistics, *, chats: bool, variables: Mapping[str, Any]
) -> None:
    """Add the facts that scoring needs to the config, which is exported with the model."""
    known = {"mean": statistics.mean, "std": statistics.std, "scores_chats": chats}
    config.update({**known, "chat_template_kwargs": dict(variables)})


def read_score_statistics(config: PreTrainedConfig, path: str) -> ScoreStatistics:
    """Read the result of `describe_scores`; raise ValueError if there is none or std is 0."""
    written = {name: getattr(config, name, None) for name in ("mean", "std")}
    mean, std = map(_as_number, written.values())
    if mean is None or std is None or std <= 0:
        raise ValueError(
            "reward.model.normalize needs the mean and the std > 0 of the model's scores in its config.json, where "
            f"task=rm writes them when it ends; {path} has mean={written['mean']}, std={written['std']}. "
            "Next: train it to its end, write them there, or reward.model.normalize=false"
        )
    return ScoreStatistics(mean, std)


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
