"""Losses of pairs: one answer chosen, one rejected, a loss [P] for each of the P pairs.

The total is the mean over the pairs of the whole global batch; as with `losses.py` the caller weights and sums,
so it does not matter how pairs are dealt to workers. DPO's extra term on the chosen answer is `-logprob` of
its tokens. To add a DPO loss, write a function and a row in `DPO_LOSSES` of config/registry.py.

Names are TRL's. Of its losses two are left out: aot and aot_unpaired sort the pairs of one device together, so they
would depend on how pairs are dealt. Its sft is `dpo.sft_coef`.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from slurm_rl.config.registry import DIVERGENCES, DPO_LOSSES
from slurm_rl.config.supervised import DPOConfig

# exp of it, and the square of such, is finite in float32.
_MAX_EXPONENT = 40.0


@dataclass(frozen=True, kw_only=True)
class LogRatios:
    """`log policy(answer) - log reference(answer)`, summed over the answer's tokens.

    A reference-free loss takes `log policy(answer)`, as with a uniform reference.
    """

    chosen: Tensor
    """[P], with gradient."""
    rejected: Tensor
    """[P], with gradient."""
    chosen_lengths: Tensor
    """[P] number of tokens summed, >= 1."""
    rejected_lengths: Tensor
    """[P] number of tokens summed, >= 1."""


def bradley_terry(chosen: Tensor, rejected: Tensor, margins: Tensor) -> Tensor:
    """`-log sigmoid(chosen - rejected - margin)` [P] of a reward model's scores [P].

    Margin: Llama 2, https://arxiv.org/abs/2307.09288, section 3.2.2.
    """
    return -logsigmoid(chosen - rejected - margins)


def center_scores(chosen: Tensor, rejected: Tensor) -> Tensor:
    """`(chosen + rejected)^2` [P], which keeps scores around 0: https://arxiv.org/abs/2312.09244, section 5.

    TRL weighs it by center_rewards_coefficient.
    """
    return (chosen + rejected).square()


def dpo_sigmoid(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`-(1 - e) log sigmoid(h) - e log sigmoid(-h)` [P], `h = beta (chosen - rejected)`, e the label smoothing.

    DPO: https://arxiv.org/abs/2305.18290, eq. 7. cDPO takes a share e < 0.5 of the labels to be swapped:
    https://ericmitchell.ai/cdpo.pdf.
    """
    h, e = _difference(ratios, config), config.label_smoothing
    return -(1 - e) * logsigmoid(h) - e * logsigmoid(-h)


def dpo_sigmoid_norm(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`-log sigmoid(beta (chosen/length - rejected/length))` [P]: Tulu 3, https://arxiv.org/abs/2411.15124, eq. 6."""
    return -logsigmoid(config.beta * _difference_of_means(ratios))


def dpo_hinge(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`max(0, 1 - h)` [P]: SLiC, https://arxiv.org/abs/2305.10425, as RSO writes it,
    https://arxiv.org/abs/2309.06657."""
    return torch.relu(1 - _difference(ratios, config))


def dpo_ipo(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`(chosen/length - rejected/length - 1 / (2 beta))^2` [P]: IPO, https://arxiv.org/abs/2310.12036, eq. 17.

    The ratios are means over tokens as in TRL, so that long answers do not overshoot the target.
    """
    return (_difference_of_means(ratios) - 1 / (2 * config.beta)).square()


def dpo_robust(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`(-(1 - e) log sigmoid(h) + e log sigmoid(-h)) / (1 - 2 e)` [P]: https://arxiv.org/abs/2403.00409, eq. 7.

    Its expectation over labels with a share e swapped is the loss of the right labels.
    """
    h, e = _difference(ratios, config), config.label_smoothing
    return (-(1 - e) * logsigmoid(h) + e * logsigmoid(-h)) / (1 - 2 * e)


def dpo_exo_pair(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """KL [P] of `(sigmoid(h), sigmoid(-h))` to `(1 - e, e)`: EXO, https://arxiv.org/abs/2402.00856, eq. 16."""
    h, e = _difference(ratios, config), config.label_smoothing
    return h.sigmoid() * (logsigmoid(h) - math.log1p(-e)) + (-h).sigmoid() * (logsigmoid(-h) - math.log(e))


def dpo_nca_pair(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`-log sigmoid(c) - (log sigmoid(-c) + log sigmoid(-r)) / 2` [P]: NCA, https://arxiv.org/abs/2402.05369.

    c and r are beta times the ratios of the chosen and the rejected answer.
    """
    c, r = config.beta * ratios.chosen, config.beta * ratios.rejected
    return -logsigmoid(c) - 0.5 * logsigmoid(-c) - 0.5 * logsigmoid(-r)


def dpo_bco_pair(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`-log sigmoid(c) - log sigmoid(-r)` [P]: BCO without its shift, https://arxiv.org/abs/2404.04656."""
    return -logsigmoid(config.beta * ratios.chosen) - logsigmoid(-config.beta * ratios.rejected)


def dpo_sppo_hard(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`(chosen - 1 / (2 beta))^2 + (rejected + 1 / (2 beta))^2` [P]: SPPO, https://arxiv.org/abs/2405.00675, eq. 4.7.

    The chosen answer is taken to win for certain.
    """
    target = 0.5 / config.beta
    return (ratios.chosen - target).square() + (ratios.rejected + target).square()


def dpo_apo_zero(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`1 - sigmoid(c) + sigmoid(r)` [P], for chosen answers better than the policy's:
    https://arxiv.org/abs/2408.06266."""
    return 1 - torch.sigmoid(config.beta * ratios.chosen) + torch.sigmoid(config.beta * ratios.rejected)


def dpo_apo_down(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`sigmoid(c) + 1 - sigmoid(h)` [P], for chosen answers worse than the policy's: APO, eq. 8 of the same paper."""
    return torch.sigmoid(config.beta * ratios.chosen) + 1 - torch.sigmoid(_difference(ratios, config))


def dpo_discopop(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """`-(1 - m) log sigmoid(h) + m exp(-h)` [P], `m = sigmoid(h / tau)`: https://arxiv.org/abs/2406.08414, eq. 5."""
    h = _difference(ratios, config)
    blend = torch.sigmoid(h / config.discopop_tau)
    return -(1 - blend) * logsigmoid(h) + blend * _exp(-h)


def _difference(ratios: LogRatios, config: DPOConfig) -> Tensor:
    return config.beta * (ratios.chosen - ratios.rejected)


def _difference_of_means(ratios: LogRatios) -> Tensor:
    return ratios.chosen / ratios.chosen_lengths - ratios.rejected / ratios.rejected_lengths


# f-DPO, https://arxiv.org/abs/2309.16240, table 1: `f'(t)` of `log t` [P] and alpha, up to a constant.


def reverse_kl(ratio: Tensor, alpha: float) -> Tensor:
    """DPO's own: `log t`."""
    return ratio


def forward_kl(ratio: Tensor, alpha: float) -> Tensor:
    """`1 - 1 / t`."""
    return 1 - _exp(-ratio)


def js_divergence(ratio: Tensor, alpha: float) -> Tensor:
    """`log(2 t / (1 + t))`."""
    return math.log(2) + logsigmoid(ratio)


def alpha_divergence(ratio: Tensor, alpha: float) -> Tensor:
    """`(1 - t^(alpha - 1)) / (1 - alpha)`."""
    return (1 - _exp((alpha - 1) * ratio)) / (1 - alpha)


def compute_dpo_loss(ratios: LogRatios, config: DPOConfig) -> Tensor:
    """The loss [P] of a config."""
    score, alpha = DIVERGENCES[config.divergence].load(), config.divergence_alpha
    scores = replace(ratios, chosen=score(ratios.chosen, alpha), rejected=score(ratios.rejected, alpha))
    loss: Tensor = DPO_LOSSES[config.loss].load()(scores, config)
    return loss


def _exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(max=_MAX_EXPONENT).exp()
