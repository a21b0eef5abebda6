"""Compare losses and advantages with TRL's GRPOTrainer on the same numbers; docs/from/moving-trl.md has these formulas.

The GRPOTrainer has a model of two thousand parameters. Its `_compute_loss` runs unmodified on our logprobs, and its
`_generate_and_score_completions` on our rewards. Equivalent settings:

TRL loss_type   grpo                        dapo, bnpo    dr_grpo                         luspo
aggregation     sequence-mean-token-mean    token-mean    sequence-mean, constant length  sequence-mean
TRL importance_sampling_level   token    sequence           (TRL has no gspo_token since 1.16: it equals
loss                            grpo     gspo, gspo_token    gspo where a sequence has one advantage)
TRL cispo (sums like dapo)      cispo, token-mean, epsilon_high = 1 + clip_ratio_high
TRL beta > 0                    k3, with use_bias_correction_kl=False; with True: kl.bias_correction
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.advantages import whiten
from slurm_rl.algorithms.filters import weigh
from slurm_rl.algorithms.logprobs import compute_token_logprobs
from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.registry import ADVANTAGES
from slurm_rl.rewards.results import RewardItem, build_result

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


OURS: dict[str, Any] = {"clip_ratio_low": CLIP_LOW, "clip_ratio_high": CLIP_HIGH, "clip_ratio_c": None}
ALL = torch.ones(len(LENGTHS), dtype=torch.bool)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = build_trainer("GRPO", tmp_path_factory.mktemp("trl"), (1, len(LENGTHS)))
    built.current_gradient_accumulation_steps = 1
    built.model.train()
    return built


def our_loss(
    case: Case,
    fields: dict[str, Any],
    *,
    kind: str | None = None,
    sampler: torch.Tensor | None = None,
    entropies: torch.Tensor | None = None,
    keep: torch.Tensor = ALL,
) -> tuple[float, torch.Tensor, float]:
    """Return the loss of `algorithm` from sequences on, its gradient by the logprobs [N], and the clipped tokens.

    Args:
        fields: of AlgorithmConfig.
        kind: of the correction.
        sampler: logprobs [B, T] of the sampling policy.
        keep: sequences [B] that `algorithm.filters` leaves.
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
        if keep[row]
    ]
    whole, chosen = case.logprobs.clone().requires_grad_(), MASK & keep[:, None]
    entropy = torch.zeros(MASK.shape) if entropies is None else entropies
    batch = build_packed_batch(weigh(sequences, config))
    loss, sums = build_policy_loss(config, kind)(batch, whole[chosen], entropy[chosen])
    [gradient] = torch.autograd.grad(loss, whole)
    return loss.item(), gradient[MASK], sums["policy/clip_fraction"]


def agree(ours: tuple[float, torch.Tensor, float], theirs: tuple[float, torch.Tensor], share: float = 1.0) -> None:
    """Check that TRL's loss and gradient are `share` times ours."""
    assert share * ours[0] == pytest.approx(theirs[0], abs=1e-5)
    torch.testing.assert_close(share * ours[1], theirs[1], rtol=0, atol=1e-5)


MEAN_OF_MEANS = {"aggregation": "sequence-mean-token-mean"}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, MEAN_OF_MEANS),
    "dapo": ({"loss_type": "dapo"}, {}),
    "bnpo": ({"loss_type": "bnpo"}, {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"aggregation": "sequence-mean", "aggregation_length": MAX_LENGTH}),
    "luspo": ({"loss_type": "luspo"}, {"aggregation": "sequence-mean"}),
    "gspo": ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss": "gspo", **MEAN_OF_MEANS}),
    "gspo_token": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss": "gspo_token", **MEAN_OF_MEANS},
    ),
    "cispo": ({"loss_type": "cispo", "epsilon_high": CLIP_HIGH + 1}, {"loss": "cispo"}),
    "cispo, wide": ({"loss_type": "cispo", "epsilon_high": 5.0}, {"loss": "cispo", "clip_ratio_high": 4.0}),
}
"""Settings of TRL, and ours."""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
@pytest.mark.parametrize("row", LOSSES)
def test_loss_and_gradient(trainer: Any, row: str, kl_coefficient: float, seed: int) -> None:
    (theirs, fields), case = LOSSES[row], make_case(seed)
    expected = compute_trl_loss(trainer, case, beta=kl_coefficient, **theirs)
    found = our_loss(case, {**fields, "kl": {"coef": kl_coefficient}})
    agree(found, expected)
    assert 0 < found[2] < sum(LENGTHS) or row == "cispo, wide"
    metrics = trainer._metrics["train"]
    if fields.get("loss") == "cispo":
        # TRL counts a clip where the advantage is positive.
        positive = our_loss(case, fields, keep=case.advantages > 0)[2]
        assert positive / sum(LENGTHS) == pytest.approx(metrics["cispo_clip_ratio"][0])
    elif "importance_sampling_level" not in theirs:
        assert found[2] / sum(LENGTHS) == pytest.approx(metrics["clip_ratio/region_mean"][0])


@pytest.mark.parametrize("seed", range(3))
def test_dual_clip(trainer: Any, seed: int) -> None:
    """TRL's delta bounds all ratios; above 1 + high it only has an effect for negative advantages."""
    case = make_case(seed)
    case = replace(case, advantages=-case.advantages)  # so that sequences with negative advantage drift up
    ours = our_loss(case, {"clip_ratio_c": 1.5})
    agree(ours, compute_trl_loss(trainer, case, delta=1.5))
    assert ours[0] < our_loss(case, {})[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_corrected", [True, False])
def test_beta_and_use_bias_correction_kl_equal_kl_bias_correction(trainer: Any, is_corrected: bool, seed: int) -> None:
    case, fields = make_case(seed), {"kl": {"coef": 0.3, "bias_correction": is_corrected}}
    theirs = compute_trl_loss(trainer, case, beta=0.3, use_bias_correction_kl=is_corrected)
    agree(our_loss(case, fields), theirs)
    other = our_loss(case, {"kl": {"coef": 0.3, "bias_correction": not is_corrected}})
    assert (other[1] - theirs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mode", "kind"), [("token_truncate", "token_tis"), ("token_mask", "icepop"), ("sequence_mask", "sequence_mask")]
)
@pytest.mark.parametrize("low", [0.0, 0.6])
def test_vllm_importance_sampling_equals_correction(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, mode: str, kind: str, low: float, seed: int
) -> None:
    """TRL computes its factors from its own engine's logprobs."""
    random = torch.Generator().manual_seed(seed)
    case = make_case(seed)
    drift = torch.tensor([0.3, -0.1, 0.2, 0.05, 0.0]).unsqueeze(1)
    sampler = case.old_logprobs + drift + 0.3 * torch.randn(MASK.shape, generator=random)
    more = {
        "use_vllm": True,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        # The page states that token_tis has no lower bound.
        "vllm_importance_sampling_clip_min": low if low and kind != "token_tis" else None,
        "vllm_importance_sampling_clip_max": 1.5,
    }
    factors = compute_factors(trainer, monkeypatch, case, sampler, more)
    theirs = compute_trl_loss(trainer, case, inputs={"importance_sampling_ratio": factors}, **more)
    agree(our_loss(case, {"correction": {"low": low, "high": 1.5}}, kind=kind, sampler=sampler), theirs)


def compute_factors(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, case: Case, sampler: torch.Tensor, settings: dict[str, Any]
) -> torch.Tensor:
    """Return TRL's importance sampling ratio, [B, T] or [B, 1], for the engine logprobs `sampler`."""
    lengths = [max(length, 1) for length in LENGTHS]  # the ratio of an empty completion does not matter
    ids = [[3] * length for length in lengths]
    logprobs = [row[:length].tolist() for row, length in zip(sampler, lengths, strict=True)]
    generated: Any = ([[3]] * len(ids), ids, None, ["w3"] * len(ids), logprobs, {}, None, None)
    for name, value in {"beta": 0.0, **settings}.items():
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
    theirs = compute_trl_loss(trainer, case, entropies=entropies, **more)
    agree(our_loss(case, {"entropy_coef": 0.2}, entropies=entropies), theirs)
    bonus = our_loss(case, {}, entropies=entropies)[0] - theirs[0]
    assert bonus == pytest.approx(0.2 * entropies[MASK].mean().item(), abs=1e-5)


def test_dapo_minibatches_are_weighted_by_tokens(trainer: Any) -> None:
    """TRL divides a minibatch by the mean tokens over all minibatches, ours by its own; equal for equal sizes."""
    case, own = make_case(0), sum(LENGTHS)
    for total in (2 * own, 3 * own):
        inputs = {"num_items_in_batch": torch.tensor(total)}
        theirs = compute_trl_loss(trainer, case, inputs=inputs, steps_per_generation=2)
        agree(our_loss(case, {}), theirs, share=own / (total / 2))


def test_mask_truncated_completions_equals_filter_of_truncated_ones(trainer: Any) -> None:
    """The second and fourth of five completions are truncated; TRL counts them in the mean over completions."""
    case, keep = make_case(1), torch.tensor([True, False, True, False, True])
    mask = (MASK & keep[:, None]).long()
    inputs = {"completion_mask": mask, "num_items_in_batch": mask.sum()}
    rows = keep[:, None].expand_as(MASK)[MASK]
    for loss_type, aggregation, share in (("dapo", "token-mean", 1.0), ("grpo", "sequence-mean-token-mean", 3 / 5)):
        theirs, gradient = compute_trl_loss(trainer, case, loss_type=loss_type, inputs=inputs)
        agree(our_loss(case, {"aggregation": aggregation}, keep=keep), (theirs, gradient * rows), share)


# Four prompts; the third is always solved, the last by luck.
REWARDS = torch.tensor([[0.0, 1.0, 1.0, 0.5], [0.2, 0.9, -0.3, 0.4], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])


def compute_trl_advantages(trainer: Any, rewards: torch.Tensor) -> torch.Tensor:
    prompts = [{"prompt": "w3 w4", "reward": reward} for reward in rewards.flatten().tolist()]
    advantages: torch.Tensor = trainer._generate_and_score_completions(prompts)["advantages"]
    return advantages.reshape(rewards.shape)


def compute_advantages(name: str, rewards: torch.Tensor) -> torch.Tensor:
    return ADVANTAGES[name].load()(rewards, torch.ones_like(rewards, dtype=torch.bool))


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("group_norm", "GRPO", {"scale_rewards": "group"}),
        ("dr_grpo", "GRPO", {"scale_rewards": "none"}),
        ("rloo", "RLOO", {"normalize_advantages": False}),
    ],
)
def test_advantages(name: str, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = build_trainer(kind, tmp_path, (4, 4), beta=0.0, **settings)
    ours = compute_advantages(name, REWARDS)
    torch.testing.assert_close(ours, compute_trl_advantages(trainer, REWARDS), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "rewards"),
    [
        ("reinforce_pp", (1, 16), REWARDS),
        # TRL's scale_rewards="batch" divides by the deviation of raw rewards, REINFORCE++ by that of centred ones.
        ("reinforce_pp_baseline", (4, 4), REWARDS - REWARDS.mean(1, keepdim=True)),
    ],
)
def test_reinforce_pp_equals_scaling_by_batch(
    name: str, shape: tuple[int, int], rewards: torch.Tensor, tmp_path: Path
) -> None:
    """For completions of one token each, with the deviation over n - 1 as in TRL."""
    trainer = build_trainer("GRPO", tmp_path, shape, scale_rewards="batch")
    scores = compute_advantages(name, REWARDS).flatten()
    whitened = torch.tensor(whiten([score.numpy() for score in scores.split(1)], [True] * 16)).reshape(REWARDS.shape)
    # TRL adds 1e-4 to the deviation, which is 0.4.
    torch.testing.assert_close(
        whitened * (15 / 16) ** 0.5, compute_trl_advantages(trainer, rewards), rtol=1e-3, atol=1e-6
    )


def test_reward_weights_equal_weights_of_verifiers(tmp_path: Path) -> None:
    right, form = [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]
    trainer = build_trainer("GRPO", tmp_path, (1, 4), beta=0.0)
    trainer.reward_funcs = [lambda completions, right, **_: right, lambda completions, form, **_: form]
    trainer.reward_processing_classes, trainer.reward_func_names = [None, None], ["right", "form"]
    trainer.reward_weights = torch.tensor([0.3, 0.7])
    pairs = list(zip(right, form, strict=True))
    prompts = [{"prompt": "w3 w4", "right": a, "form": b} for a, b in pairs]
    theirs = trainer._generate_and_score_completions(prompts)["advantages"]
    item, weights = RewardItem(completion="7", answer="7"), {"arithmetic": 0.3, "format": 0.7}
    values = [build_result(item, {"arithmetic": a, "format": b}, weights).value for a, b in pairs]
    torch.testing.assert_close(compute_advantages("group_norm", torch.tensor([values]))[0], theirs, rtol=0, atol=1e-5)


def test_logprobs_and_entropy() -> None:
    from trl.trainer.utils import selective_log_softmax_and_entropy

    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20, 100, generator=random)
    targets = torch.randint(0, 100, (20,), generator=random)
    ours = compute_token_logprobs(logits, targets, 0.7)
    torch.testing.assert_close(ours, selective_log_softmax_and_entropy(logits, targets, temperature=0.7))
