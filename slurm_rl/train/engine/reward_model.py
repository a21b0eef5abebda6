"""Hugging Face's sequence classifiers with one label, as reward models that read packed rows."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput


def score_every_token(model: PreTrainedModel) -> None:
    """Let the model give the score after each token, [B, T, 1], where Hugging Face keeps that of each row's last.

    A packed row has many last tokens. Names, config and what is saved stay those of Hugging Face's own class.
    """
    kind = type(model)

    def forward(self: Any, input_ids: Any = None, **fields: Any) -> TokenClassifierOutput:
        hidden = getattr(self, self.base_model_prefix)(input_ids=input_ids, **fields).last_hidden_state
        return TokenClassifierOutput(logits=self.score(hidden))

    model.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def allow_new_head(loaded: dict[str, Any]) -> None:
    """A language model is welcome: it lacks the head that scores, and has one that we do not need."""
    loaded["missing_keys"] = [name for name in loaded["missing_keys"] if not name.startswith("score.")]
    loaded["unexpected_keys"] = [name for name in loaded["unexpected_keys"] if not name.startswith("lm_head.")]
