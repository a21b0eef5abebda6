import torch
from torch import nn

from slurm_rl.rollout.vllm.reload_fixes import leave_out_missing_head


def test_tied_head_is_left_out_only_if_engine_has_none() -> None:
    """Gemma 2 in vLLM multiplies by its embedding, and its loader raises for another name."""
    weights = [("model.embed_tokens.weight", torch.ones(2)), ("lm_head.weight", torch.ones(2))]
    without, nested = nn.ModuleDict({"model": nn.Linear(1, 1)}), nn.ModuleDict({"language_model": nn.Module()})
    nested["language_model"].lm_head = nn.Linear(1, 1)
    assert [name for name, _ in leave_out_missing_head(without, weights)] == ["model.embed_tokens.weight"]
    assert list(leave_out_missing_head(nested, weights)) == weights
