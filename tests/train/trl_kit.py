"""TRL's trainers with a model of two thousand parameters and given logprobs and rewards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

CLIP_LOW, CLIP_HIGH = 0.2, 0.4
MAX_LENGTH = 6
# Long, full, single and empty completions; a mean over the last one would divide by zero.
LENGTHS = [3, MAX_LENGTH, 1, 5, 0]
MASK = torch.arange(MAX_LENGTH) < torch.tensor(LENGTHS).unsqueeze(1)


@dataclass(frozen=True)
class Case:
    """Padded [B, T] logprobs and one advantage per sequence [B]."""

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    advantages: torch.Tensor


def build_model() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config)


def build_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, 16)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def build_trainer(kind: str, path: Path, shape: tuple[int, int], **settings: Any) -> Any:
    """Build TRL's `GRPO` or `RLOO` trainer with batches of P prompts and G completions."""
    num_prompts, group_size = shape
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(path),
        report_to=[],
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=num_prompts * group_size,
        gradient_accumulation_steps=1,
        num_generations=group_size,
        max_completion_length=MAX_LENGTH,
        **settings,
    )
    return getattr(trl, f"{kind}Trainer")(
        model=build_model(),
        args=config,
        processing_class=build_tokenizer(),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["w3 w4"] * num_prompts}),
        reward_funcs=lambda completions, reward, **_: reward,
    )


def make_case(seed: int) -> Case:
    """Make a case in which both token ratios and sequence ratios get clipped."""
    random = torch.Generator().manual_seed(seed)
    drift = torch.tensor([0.8, -0.8, 0.4, 0.0, 0.0]).unsqueeze(1)
    advantages = torch.tensor([1.0, -0.7, -1.3, 0.4, 0.9]) + 0.2 * torch.randn(len(LENGTHS), generator=random)
    old = -3 * torch.rand(MASK.shape, generator=random) - 0.2
    return Case(
        logprobs=old + drift + 0.4 * torch.randn(MASK.shape, generator=random),
        old_logprobs=old,
        ref_logprobs=old + 0.4 * torch.randn(MASK.shape, generator=random),
        advantages=advantages,
    )


DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon_low": CLIP_LOW,
    "epsilon_high": CLIP_HIGH,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "use_vllm": False,
    "_entropy_bonus_enabled": False,
    "steps_per_generation": 1,
}
"""Settings of the trainer unless a test sets others."""


def compute_trl_loss(
    trainer: Any,
    case: Case,
    *,
    entropies: torch.Tensor | None = None,
    inputs: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[float, torch.Tensor]:
    """Return TRL's loss, and its gradient by the logprobs [N] of the trained tokens.

    Args:
        entropies: of the tokens [B, T]; None: 0.
        inputs: added to, or replacing, the inputs of `_compute_loss` from the case.
        settings: attributes of the trainer, or of its arguments, other than DEFAULTS.
    """
    logprobs = case.logprobs.clone().requires_grad_()
    for name, value in (DEFAULTS | settings).items():
        owner = trainer if hasattr(trainer, name) else trainer.args
        assert hasattr(owner, name), f"TRL renamed {name}"
        setattr(owner, name, value)
    trainer._metrics["train"].clear()
    entropies = torch.zeros_like(logprobs) if entropies is None else entropies
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, entropies, None)
    ids, mask = torch.zeros(MASK.shape, dtype=torch.long), MASK.long()
    fields = {
        "prompt_ids": ids,
        "prompt_mask": torch.ones_like(ids),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": case.advantages,
        "old_per_token_logps": case.old_logprobs,
        "ref_per_token_logps": case.ref_logprobs,
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer._compute_loss(trainer.model, fields | (inputs or {}))
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad[MASK]
