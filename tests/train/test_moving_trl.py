"""TRL 1.16 and slurm_rl compute the same for the formulas in docs/from/moving-trl.md."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.filters import weigh
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.registry import ADVANTAGES
from slurm_rl.rewards.results import RewardItem, build_result
from tests.train.trl_kit import (
    LENGTHS,
    MASK,
    Case,
    build_model,
    build_tokenizer,
    build_trainer,
    compute_trl_loss,
    make_case,
)

trl = pytest.importorskip("trl")

DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon_low": 0.2,
    "epsilon_high": 0.4,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "use_vllm": False,
    "_entropy_bonus_enabled": False,
}
"""Settings of TRL's trainer unless a test sets others."""
OURS: dict[str, Any] = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.4, "clip_ratio_c": None}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = build_trainer("GRPO", build_model(), build_tokenizer(), tmp_path_factory.mktemp("trl"), (1, len(LENGTHS)))
    built.current_gradient_accumulation_steps = 1
    built.model.train()
    return built


def trl_loss(trainer: Any, case: Case, **more: Any) -> tuple[float, torch.Tensor]:
    return compute_trl_loss(trainer, case, **DEFAULTS | more)


def our_loss(
    case: Case,
    fields: dict[str, Any],
    *,
    kind: str | None = None,
    sampler: torch.Tensor | None = None,
    entropies: torch.Tensor | None = None,
) -> tuple[float, torch.Tensor]:
    """Return the loss of `algorithm` from sequences on, and its gradient by the logprobs [N].

    Args:
        fields: of AlgorithmConfig.
        kind: of the correction.
        sampler: logprobs [B, T] of the sampling policy.
    """
    config = AlgorithmConfig.model_validate({**OURS, **fields})
    sequences = [
        TrainSequence(
            token_ids=np.arange(1 + length),
            trained_from=1,
            advantages=np.full(length, float(advantage), dtype=np.float32),
            old_logprobs=case.old_logprobs[row, :length].numpy(),
            ref_logprobs=case.ref_logprobs[row, :length].numpy() if config.kl.coef else None,
            sampler_logprobs=None if sampler is None else sampler[row, :length].numpy(),
        )
        for row, (length, advantage) in enumerate(zip(LENGTHS, case.advantages, strict=True))
    ]
    logprobs = case.logprobs[MASK].requires_grad_()
    entropy = torch.zeros_like(logprobs) if entropies is None else entropies[MASK]
    loss, _ = build_policy_loss(config, kind)(build_packed_batch(weigh(sequences, config)), logprobs, entropy)
    [gradient] = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient


def agree(ours: tuple[float, torch.Tensor], theirs: tuple[float, torch.Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_corrected", [True, False])
def test_beta_and_use_bias_correction_kl_equal_kl_bias_correction(trainer: Any, is_corrected: bool, seed: int) -> None:
    case, fields = make_case(seed), {"kl": {"coef": 0.3, "bias_correction": is_corrected}}
    theirs = trl_loss(trainer, case, beta=0.3, use_bias_correction_kl=is_corrected)
    agree(our_loss(case, fields), theirs)
    other = our_loss(case, {"kl": {"coef": 0.3, "bias_correction": not is_corrected}})
    assert (other[1] - theirs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("epsilon_high", "clip_ratio_high"), [(1.3, 0.3), (5.0, 4.0)])
def test_epsilon_high_of_cispo_equals_clip_high_plus_1(
    trainer: Any, epsilon_high: float, clip_ratio_high: float, seed: int
) -> None:
    case = make_case(seed)
    theirs = trl_loss(trainer, case, loss_type="cispo", epsilon_high=epsilon_high)
    agree(our_loss(case, {"loss": "cispo", "clip_ratio_high": clip_ratio_high}), theirs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mode", "kind"),
    [("token_truncate", "token_tis"), ("token_mask", "icepop"), ("sequence_mask", "sequence_mask"), (None, None)],
)
@pytest.mark.parametrize(("clip_min", "low"), [(None, 0.0), (0.6, 0.6)])
def test_vllm_importance_sampling_equals_correction(
    trainer: Any,
    monkeypatch: pytest.MonkeyPatch,
    mode: str | None,
    kind: str | None,
    clip_min: float | None,
    low: float,
    seed: int,
) -> None:
    """TRL computes its factors from its own engine's logprobs; None disables the correction."""
    random = torch.Generator().manual_seed(seed)
    case = make_case(seed)
    drift = torch.tensor([0.3, -0.1, 0.2, 0.05, 0.0]).unsqueeze(1)
    sampler = case.old_logprobs + drift + 0.3 * torch.randn(MASK.shape, generator=random)
    if kind == "token_tis" and clip_min is not None:
        clip_min = None  # the page states that token_tis has no lower bound
    more = {
        "use_vllm": True,
        "vllm_importance_sampling_correction": mode is not None,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": clip_min,
        "vllm_importance_sampling_clip_max": 1.5,
    }
    factors = compute_factors(trainer, monkeypatch, case, sampler, more) if mode else torch.ones_like(sampler)
    theirs = trl_loss(trainer, case, inputs={"importance_sampling_ratio": factors}, **more)
    if mode is None:
        agree(our_loss(case, {}), theirs)
        return
    agree(our_loss(case, {"correction": {"low": low, "high": 1.5}}, kind=kind, sampler=sampler), theirs)


def compute_factors(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, case: Case, sampler: torch.Tensor, settings: dict[str, Any]
) -> torch.Tensor:
    """Return TRL's importance sampling ratio, [B, T] or [B, 1], for the engine logprobs `sampler`."""
    lengths = [max(length, 1) for length in LENGTHS]  # the ratio of an empty completion does not matter
    ids = [[3] * length for length in lengths]
    logprobs = [row[:length].tolist() for row, length in zip(sampler, lengths, strict=True)]
    generated: Any = ([[3]] * len(ids), ids, None, ["w3"] * len(ids), logprobs, {}, None, None)
    for name, value in settings.items():
        monkeypatch.setattr(trainer, name, value)
    monkeypatch.setattr(trainer, "_generate", lambda prompts: generated)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (case.old_logprobs, None, None))
    prompts = [{"prompt": "w3 w4", "reward": float(row)} for row in range(len(ids))]
    factors: torch.Tensor = trainer._generate_and_score_completions(prompts)["importance_sampling_ratio"]
    return factors


@pytest.mark.parametrize("seed", range(3))
def test_entropy_coef_with_token_mean_equals_entropy_bonus(trainer: Any, seed: int) -> None:
    case, entropies = make_case(seed), torch.rand(MASK.shape, generator=torch.Generator().manual_seed(seed))
    more = {"_entropy_bonus_enabled": True, "use_adaptive_entropy": False, "entropy_coef": 0.2}
    theirs = trl_loss(trainer, case, entropies=entropies, **more)
    agree(our_loss(case, {"entropy_coef": 0.2}, entropies=entropies), theirs)
    assert our_loss(case, {}, entropies=entropies)[0] - theirs[0] == pytest.approx(
        0.2 * entropies[MASK].mean().item(), abs=1e-5
    )


def test_dapo_minibatches_are_weighted_by_tokens(trainer: Any) -> None:
    """TRL divides a minibatch by the mean tokens over all minibatches, ours by its own; equal for equal sizes."""
    case, own = make_case(0), sum(LENGTHS)
    ours, gradient = our_loss(case, {})
    for total in (2 * own, 3 * own):
        theirs, their_gradient = trl_loss(
            trainer, case, inputs={"num_items_in_batch": torch.tensor(total)}, steps_per_generation=2
        )
        share = own / (total / 2)
        assert theirs == pytest.approx(share * ours, abs=1e-5)
        torch.testing.assert_close(their_gradient, share * gradient, rtol=0, atol=1e-5)
    trainer.args.steps_per_generation = 1


def test_mask_truncated_completions_equals_filter_of_truncated_ones(trainer: Any) -> None:
    """The second and fourth of five completions are truncated; TRL counts them in the mean over completions."""
    case, keep = make_case(1), torch.tensor([1, 0, 1, 0, 1])
    mask = MASK.long() * keep.unsqueeze(1)
    inputs = {"completion_mask": mask, "num_items_in_batch": mask.sum()}
    rows = keep.bool()[:, None].expand_as(MASK)[MASK]
    for loss_type, aggregation, share in (("dapo", "token-mean", 1.0), ("grpo", "sequence-mean-token-mean", 3 / 5)):
        theirs, gradient = trl_loss(trainer, case, loss_type=loss_type, inputs=inputs)
        ours, our_gradient = our_loss_of_kept(case, aggregation, keep.tolist())
        assert theirs == pytest.approx(share * ours, abs=1e-5)
        torch.testing.assert_close(gradient[rows], share * our_gradient[rows], rtol=0, atol=1e-5)


def our_loss_of_kept(case: Case, aggregation: str, keep: list[int]) -> tuple[float, torch.Tensor]:
    """Return the loss and gradient [N] of the kept completions only, as `algorithm.filters` leaves them."""
    config = AlgorithmConfig.model_validate({**OURS, "aggregation": aggregation})
    rows = [row for row, is_kept in enumerate(keep) if is_kept]
    sequences = [
        TrainSequence(
            token_ids=np.arange(1 + LENGTHS[row]),
            trained_from=1,
            advantages=np.full(LENGTHS[row], float(case.advantages[row]), dtype=np.float32),
            old_logprobs=case.old_logprobs[row, : LENGTHS[row]].numpy(),
        )
        for row in rows
    ]
    whole = case.logprobs.clone().requires_grad_()
    logprobs = torch.cat([whole[row, : LENGTHS[row]] for row in rows])
    batch = build_packed_batch(weigh(sequences, config))
    loss, _ = build_policy_loss(config, None)(batch, logprobs, torch.zeros_like(logprobs))
    [gradient] = torch.autograd.grad(loss, whole)
    return loss.item(), gradient[MASK]


def test_reward_weights_equal_weights_of_verifiers(tmp_path: Path) -> None:
    right, form = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])
    trainer = build_trainer("GRPO", build_model(), build_tokenizer(), tmp_path, (1, 4), beta=0.0)
    trainer.reward_funcs = [lambda completions, right, **_: right, lambda completions, form, **_: form]
    trainer.reward_processing_classes, trainer.reward_func_names = [None, None], ["right", "form"]
    trainer.reward_weights = torch.tensor([0.3, 0.7])
    columns = [right.tolist(), form.tolist()]
    prompts = [{"prompt": "w3 w4", "right": a, "form": b} for a, b in zip(*columns, strict=True)]
    theirs = trainer._generate_and_score_completions(prompts)["advantages"]
    item, weights = RewardItem(completion="7", answer="7"), {"arithmetic": 0.3, "format": 0.7}
    values = [build_result(item, {"arithmetic": a, "format": b}, weights).value for a, b in zip(*columns, strict=True)]
    ours = ADVANTAGES["group_norm"].load()(torch.tensor([values]), torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(ours[0], theirs, rtol=0, atol=1e-5)
