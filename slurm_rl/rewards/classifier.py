"""Reward model: a Hugging Face classifier with one output, in the worker processes.

    reward.model.path=runs/my-rm/export reward.model.device=cpu

The score is the logit at the last token, or with `normalize` its distance in standard deviations from the mean over the
preference pairs of its training.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from slurm_rl.config.reward import RewardModelConfig
from slurm_rl.data.chat import ChatTemplate, is_rendered
from slurm_rl.data.encode_answers import encode_scored
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.results import Failure, RewardItem

PREFIX = "model:"


def specify_model(config: RewardModelConfig, num_workers: int) -> str:
    """Return the entry of this model in the table of verifiers."""
    return PREFIX + json.dumps({**config.model_dump(), "num_workers": num_workers})


class RewardModel:
    """Model and tokenizer, loaded once per worker.

    Raises:
        ConfigError: tensors are missing or unknown.
        OSError, ValueError: the folder has no model with exactly one output, or no statistics for `normalize`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        import os

        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from slurm_rl.models.reward_model import read_score_statistics
        from slurm_rl.models.weight_files import require_fit

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings["num_workers"]))
        self._tokenizer = AutoTokenizer.from_pretrained(settings["path"])
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            settings["path"],
            dtype=getattr(torch, settings["dtype"]),
            ignore_mismatched_sizes=True,  # reported below, with names
            output_loading_info=True,
        )
        if model.config.num_labels != 1:
            raise ValueError(f"a reward model has one output; {settings['path']} has {model.config.num_labels}")
        if not hasattr(model, "score"):
            raise ValueError(f"a reward model has its head under `score`; {type(model).__name__} has none")
        require_fit(loaded, "reward.model.path", settings["path"])
        self._statistics = read_score_statistics(model.config, settings["path"]) if settings["normalize"] else None
        self._model = model.to(settings["device"]).eval()
        self._variables = getattr(model.config, "chat_template_kwargs", {})
        self._device = settings["device"]
        self._batch_size = settings["batch_size"] if self._ignores_padding() else 1

    def score(self, items: Sequence[RewardItem]) -> list[float]:
        tokens = [self._encode(item) for item in items]
        # Sorted by length to reduce padding.
        order = sorted(range(len(items)), key=lambda i: len(tokens[i]))
        scores = [math.nan] * len(items)
        for first in range(0, len(order), self._batch_size):
            chosen = order[first : first + self._batch_size]
            for position, score in zip(chosen, self._forward([tokens[i] for i in chosen]), strict=True):
                scores[position] = score
        return scores

    def _encode(self, item: RewardItem) -> list[int]:
        is_chat, wants_chats = item.messages is not None, getattr(self._model.config, "scores_chats", None)
        # Text from other clients may be rendered or plain.
        fits = wants_chats in (None, is_chat) or (not is_chat and is_rendered(item.prompt, self._tokenizer))
        if not fits:
            raise ValueError(
                f"the reward model was trained {'on text, got a chat' if is_chat else 'on chats, got text'}: set "
                f"data.chat_template={str(not is_chat).lower()}, as when it was trained"
            )
        token_ids = encode_scored(
            item.prompt if item.messages is None else list(item.messages),
            item.completion,
            self._tokenizer,
            template=ChatTemplate(self._tokenizer, self._variables) if is_chat else None,
            truncated=item.truncated,
        )
        longest = getattr(self._model.config.get_text_config(), "max_position_embeddings", math.inf)
        if not 0 < len(token_ids) <= longest:
            raise ValueError(f"the reward model reads {longest} tokens; prompt and completion have {len(token_ids)}")
        return token_ids

    def _ignores_padding(self) -> bool:
        """Return whether a text has the same score in a padded batch; not if tokens attend to later ones."""
        vocabulary = self._model.config.get_text_config().vocab_size
        short, long = ([7919 * place % vocabulary for place in range(1, length)] for length in (12, 40))
        [single], [padded, other] = self._forward([short]), self._forward([short, long])
        bound = 0.1 if self._model.dtype.itemsize < 4 else 1e-3  # of rounding
        return abs(single - padded) <= bound * max(abs(single), abs(other), 1e-3)

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        import torch

        from slurm_rl.models.head import apply_head

        length = max(map(len, rows))
        # Padding follows the last token and is masked; 0 is in every vocabulary.
        ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self._device)
        with torch.inference_mode():
            hidden = self._model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
            # Not `logits`: they are read at the last non-padding token, and padding is often the end-of-text token.
            last = hidden[torch.arange(len(rows)), mask.sum(-1) - 1]
            scores = apply_head(self._model.score, last).flatten()
            return (scores if self._statistics is None else self._statistics.normalize(scores)).tolist()


@cache
def load_model(spec: str) -> RewardModel:
    """Return the model of a spec; loads it at the first call."""
    return RewardModel(json.loads(spec.removeprefix(PREFIX)))


def require_loadable(spec: str) -> None:
    """Load the model of a spec; raise ConfigError if it is not a reward model."""
    try:
        load_model(spec)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "reward.model.path must be a sequence classifier with one output", seen=str(error)[:500]
        ) from error


def score_all(spec: str, items: Sequence[RewardItem]) -> list[dict[str, float] | Failure]:
    """Return one outcome per item; score the items one by one if the batch fails."""
    if not items:
        return []
    return score_by_model(spec, items) or [outcome for item in items for outcome in score_by_model(spec, [item])]


def score_by_model(spec: str, items: Sequence[RewardItem]) -> list[dict[str, float] | Failure]:
    """Return the outcomes of a chunk; [] if it failed as a whole."""
    try:
        scores = load_model(spec).score(items)
    except Exception as error:
        words = f"model: {type(error).__name__}: {error}"[:500]
        return [Failure("exception", words)] if len(items) == 1 else []
    return [
        {"model": score} if math.isfinite(score) else Failure("bad score", f"the model returned {score}")
        for score in scores
    ]
