"""Compare losses and advantages with TRL's GRPOTrainer on the same numbers.

The GRPOTrainer has a model of two thousand parameters. Its `_compute_loss` runs unmodified on our logprobs, and its
`_generate_and_score_completions` on our rewards. Equivalent settings:

TRL loss_type   grpo                        dapo, bnpo    dr_grpo                         luspo
aggregation     sequence-mean-token-mean    token-mean    sequence-mean, constant length  sequence-mean
TRL importance_sampling_level   token    sequence           (TRL has no gspo_token since 1.16: it equals
loss                            grpo     gspo, gspo_token    gspo where a sequence has one advantage)
TRL cispo (sums like dapo)      cispo, token-mean, epsilon_high = 1 + clip_ratio_high
TRL beta > 0                    k3, with use_bias_correction_kl=False; with True: kl.bias_correction, see
                                test_moving_trl.py
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slurm_rl.algorithms.advantages import whiten
from slurm_rl.algorithms.kl import compute_kl
from slurm_rl.algorithms.logprobs import compute_token_logprobs
from slurm_rl.algorithms.losses import ClipRange, LossInputs, aggregation_weights
from slurm_rl.config.algorithm import AggregationName
from slurm_rl.config.registry import ADVANTAGES, POLICY_LOSSES
from tests.train.trl_kit import (
    CLIP,
    LENGTHS,
    MASK,
    MAX_LENGTH,
    Case,
    build_model,
    build_tokenizer,
    build_trainer,
    compute_trl_loss,
    make_case,
)

trl = pytest.importorskip("trl")


@pytest.fixture(scope="module")
def tiny_model() -> Any:
    return build_model()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="module")
def trainer(tiny_model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("trl")
    built = build_trainer("GRPO", tiny_model, tokenizer, path, (1, len(LENGTHS)), use_bias_correction_kl=False)
    built.current_gradient_accumulation_steps = 1
    built.model.train()
    return built


def compute_our_loss(
    case: Case,
    name: str,
    mode: AggregationName,
    constant_length: int | None = None,
    kl_coefficient: float = 0.0,
    clip: ClipRange = CLIP,
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return our loss, its gradient by the logprobs [N], and which tokens [N] were clipped."""
    logprobs = case.logprobs[MASK].requires_grad_()
    sequence_ids = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=case.old_logprobs[MASK],
        advantages=case.advantages[sequence_ids],
        sequence_ids=sequence_ids,
        num_sequences=len(LENGTHS),
    )
    token_loss = POLICY_LOSSES[name].load()(inputs, clip)
    kl = compute_kl(logprobs, case.ref_logprobs[MASK], "k3")
    weights = torch.from_numpy(aggregation_weights(mode, LENGTHS, constant_length)).float()[sequence_ids]
    loss = ((token_loss.loss + kl_coefficient * kl) * weights).sum()
    loss.backward()
    assert logprobs.grad is not None
    return loss.item(), logprobs.grad, token_loss.clipped


LOSSES: dict[str, tuple[str, str, str, AggregationName, int | None]] = {
    "grpo": ("grpo", "token", "grpo", "sequence-mean-token-mean", None),
    "dapo": ("dapo", "token", "grpo", "token-mean", None),
    "bnpo": ("bnpo", "token", "grpo", "token-mean", None),
    "dr_grpo": ("dr_grpo", "token", "grpo", "sequence-mean", MAX_LENGTH),
    "luspo": ("luspo", "token", "grpo", "sequence-mean", None),
    "gspo": ("grpo", "sequence", "gspo", "sequence-mean-token-mean", None),
    "gspo_token": ("grpo", "sequence", "gspo_token", "sequence-mean-token-mean", None),
    "cispo": ("cispo", "token", "cispo", "token-mean", None),
}
"""TRL's loss_type and importance_sampling_level; our loss, aggregation and constant length."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
@pytest.mark.parametrize("row", LOSSES)
def test_loss_and_gradient(trainer: Any, row: str, kl_coefficient: float, seed: int) -> None:
    loss_type, level, name, mode, constant_length = LOSSES[row]
    case = make_case(seed)
    trl_result, their_gradient = compute_trl_loss(
        trainer,
        case,
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=CLIP.low,
        epsilon_high=CLIP.high + (row == "cispo"),
        beta=kl_coefficient,
    )
    ours, our_gradient, clipped = compute_our_loss(case, name, mode, constant_length, kl_coefficient)
    assert ours == pytest.approx(trl_result, abs=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-5)
    assert 0 < clipped.sum() < len(clipped)
    metrics = trainer._metrics["train"]
    if row == "cispo":
        # TRL counts a clip where the advantage is positive.
        positive = (case.advantages > 0).repeat_interleave(torch.tensor(LENGTHS))
        assert (clipped * positive).mean().item() == pytest.approx(metrics["cispo_clip_ratio"][0])
    elif level == "token":
        assert clipped.mean().item() == pytest.approx(metrics["clip_ratio/region_mean"][0])


@pytest.mark.parametrize("seed", range(3))
def test_dual_clip(trainer: Any, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """TRL's delta bounds all ratios; above 1 + high it only has an effect for negative advantages."""
    dual, case = 1.5, make_case(seed)
    case = replace(case, advantages=-case.advantages)  # so that sequences with negative advantage drift up
    monkeypatch.setattr(trainer.args, "delta", dual)
    trl_result, their_gradient = compute_trl_loss(
        trainer,
        case,
        loss_type="dapo",
        importance_sampling_level="token",
        epsilon_low=CLIP.low,
        epsilon_high=CLIP.high,
        beta=0.0,
    )
    ours, our_gradient, _ = compute_our_loss(
        case, "grpo", "token-mean", clip=ClipRange(low=CLIP.low, high=CLIP.high, dual=dual)
    )
    without, _, _ = compute_our_loss(case, "grpo", "token-mean")
    assert ours == pytest.approx(trl_result, abs=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-5)
    assert ours < without


# Four prompts; the third is always solved, the last by luck.
REWARDS = torch.tensor([[0.0, 1.0, 1.0, 0.5], [0.2, 0.9, -0.3, 0.4], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])


def compute_trl_advantages(trainer: Any, rewards: torch.Tensor) -> torch.Tensor:
    prompts = [{"prompt": "w3 w4", "reward": reward} for reward in rewards.flatten().tolist()]
    advantages: torch.Tensor = trainer._generate_and_score_completions(prompts)["advantages"]
    return advantages.reshape(rewards.shape)


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("group_norm", "GRPO", {"scale_rewards": "group"}),
        ("dr_grpo", "GRPO", {"scale_rewards": "none"}),
        ("rloo", "RLOO", {"normalize_advantages": False}),
    ],
)
def test_advantages(
    name: str, kind: str, settings: dict[str, Any], tiny_model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    trainer = build_trainer(kind, tiny_model, tokenizer, tmp_path, (4, 4), beta=0.0, **settings)
    trl_result = compute_trl_advantages(trainer, REWARDS)
    ours = ADVANTAGES[name].load()(REWARDS, torch.ones_like(REWARDS, dtype=torch.bool))
    torch.testing.assert_close(ours, trl_result, rtol=0, atol=1e-5)


def whiten_like_trl(name: str) -> torch.Tensor:
    """Return our result for completions of one token each, with the deviation over n - 1 as in TRL."""
    scores = ADVANTAGES[name].load()(REWARDS, torch.ones_like(REWARDS, dtype=torch.bool)).flatten()
    count = len(scores)
    whitened = whiten([score.numpy() for score in scores.split(1)], [True] * count)
    return torch.tensor(whitened).reshape(REWARDS.shape) * ((count - 1) / count) ** 0.5


def test_reinforce_pp_is_one_group_per_batch(tiny_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    trainer = build_trainer("GRPO", tiny_model, tokenizer, tmp_path, (1, 16), scale_rewards="batch")
    trl_result = compute_trl_advantages(trainer, REWARDS)
    # TRL adds 1e-4 to the deviation, which is 0.4.
    torch.testing.assert_close(whiten_like_trl("reinforce_pp"), trl_result, rtol=1e-3, atol=0)


def test_reinforce_pp_baseline_scales_centred_rewards_by_batch(tiny_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    # TRL's scale_rewards="batch" divides by the deviation of raw rewards, REINFORCE++ by that of centred ones.
    trainer = build_trainer("GRPO", tiny_model, tokenizer, tmp_path, (4, 4), scale_rewards="batch")
    trl_result = compute_trl_advantages(trainer, REWARDS - REWARDS.mean(1, keepdim=True))
    torch.testing.assert_close(whiten_like_trl("reinforce_pp_baseline"), trl_result, rtol=1e-3, atol=1e-6)


def test_logprobs_and_entropy() -> None:
    from trl.trainer.utils import selective_log_softmax_and_entropy

    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 100, generator=random)
    targets = torch.randint(0, 100, (20,), generator=random)
    ours = compute_token_logprobs(logits, targets, 0.7)
    torch.testing.assert_close(ours, selective_log_softmax_and_entropy(logits, targets, temperature=0.7))
