from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from slurm_rl.algorithms.preference import LogRatios, compute_dpo_loss
from slurm_rl.config.registry import DIVERGENCES, DPO_LOSSES
from slurm_rl.config.supervised import DPOConfig

trl = pytest.importorskip("trl")

NUM_PAIRS, PROMPT, LONGEST = 6, 2, 9
SMOOTHING = {"exo_pair": 1e-3, "robust": 0.1}
LEFT_OUT = {"aot", "aot_unpaired", "sft"}
"""See algorithms/preference.py."""


def build_cases() -> list[DPOConfig]:
    plain = [DPOConfig(loss=loss, beta=0.3, label_smoothing=SMOOTHING.get(loss, 0.0)) for loss in DPO_LOSSES]
    bent = [
        DPOConfig.model_validate(config.model_dump() | {"divergence": name, "divergence_alpha": 0.3})
        for config in plain
        if not DPO_LOSSES[config.loss].absolute
        for name in list(DIVERGENCES)[1:]
    ]
    return [*plain, DPOConfig(loss="discopop", beta=0.3, discopop_tau=0.7), *bent]


def their_loss(config: DPOConfig, logprobs: Tensor, reference: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Return TRL's loss for logprobs [2P, L], chosen answers first."""
    outputs = SimpleNamespace(
        log_probs=logprobs * mask[:, 1:],
        entropy=torch.zeros_like(logprobs),
        mean_logits=torch.zeros_like(logprobs),
        is_top1=torch.zeros_like(logprobs, dtype=torch.bool),
    )
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x)
    trainer: Any = SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        args=SimpleNamespace(discopop_tau=config.discopop_tau),
        aux_loss_enabled=False,
        ld_alpha=None,
        use_weighting=False,
        precompute_ref_logps=True,
        loss_types=[config.loss],
        loss_weights=[1.0],
        beta=config.beta,
        label_smoothing=config.label_smoothing,
        f_divergence_type=config.divergence,
        f_alpha_divergence_coef=config.divergence_alpha,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
    )
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": reference[0],
        "ref_rejected_logps": reference[1],
    }
    loss: Tensor = trl.DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    return loss


@pytest.mark.parametrize("config", build_cases(), ids=lambda config: f"{config.loss}-{config.divergence}")
def test_loss_and_gradient_equal_trl(config: DPOConfig) -> None:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LONGEST - PROMPT, (2 * NUM_PAIRS,), generator=random)
    places = torch.arange(LONGEST)
    mask = ((places >= PROMPT) & (places < PROMPT + lengths[:, None])).long()
    logprobs = (-3 * torch.rand(2 * NUM_PAIRS, LONGEST - 1, generator=random)).requires_grad_()
    reference = (-3 * torch.rand(2 * NUM_PAIRS, LONGEST - 1, generator=random) * mask[:, 1:]).sum(-1).chunk(2)
    theirs = their_loss(config, logprobs, reference, mask)
    chosen, rejected = (logprobs * mask[:, 1:]).sum(-1).chunk(2)
    ratios = LogRatios(
        chosen=chosen - reference[0],
        rejected=rejected - reference[1],
        chosen_lengths=lengths[:NUM_PAIRS],
        rejected_lengths=lengths[NUM_PAIRS:],
    )
    ours = compute_dpo_loss(ratios, config).mean()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(loss, logprobs, retain_graph=True)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


def test_trl_losses_are_supported_or_excluded_with_reason() -> None:
    said = trl.DPOConfig.__dataclass_fields__["loss_type"].metadata["help"].replace("`", "")
    names = {word.strip("'") for word in said.partition("values are: ")[2].partition(". If")[0].split(", ")}
    assert names == set(DPO_LOSSES) | LEFT_OUT
