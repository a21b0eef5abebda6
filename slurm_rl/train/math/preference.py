"""Losses of pairs: one answer chosen, one rejected, a loss [P] for each of the P pairs.

The total is the mean over the pairs of the whole global batch; as with `losses.py` the caller weights and sums,
so it does not matter how pairs are dealt to workers. DPO's extra term on the chosen answer is `losses.nll` of
its tokens. To add a DPO loss, write a function and a row in `DPO_LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from slurm_rl.config.supervised import DPOLossName


@dataclass(frozen=True, kw_only=True)
class LogRatios:
    """`log policy(answer) - log reference(answer)`, summed over the answer's tokens.

    A reference-free loss takes `log policy(answer)` alone: a reference that gives every answer the same probability.
    """

    chosen: Tensor
    """[P], with gradient."""
    rejected: Tensor
    """[P], with gradient."""
    chosen_lengths: Tensor
    """[P] number of tokens summed, >= 1."""
    rejected_lengths: Tensor
    """[P] number of tokens summed, >= 1."""


def bradley_terry(chosen: Tensor, rejected: Tensor, margins: Tensor | None = None) -> Tensor:
    """`-log sigmoid(chosen - rejected - margin)` [P] of a reward model's scores [P].

    Margin: Llama 2, https://arxiv.org/abs/2307.09288, section 3.2.2; none is a margin of 0.
    """
    difference = chosen - rejected
    return -logsigmoid(difference if margins is None else difference - margins)


def dpo_sigmoid(ratios: LogRatios, beta: float, label_smoothing: float) -> Tensor:
    """`-(1 - e) log sigmoid(h) - e log sigmoid(-h)` [P], `h = beta (chosen - rejected)`, e the label smoothing.

    DPO: https://arxiv.org/abs/2305.18290, eq. 7. cDPO takes a share e < 0.5 of the labels to be swapped:
    https://ericmitchell.ai/cdpo.pdf.
    """
    h = beta * (ratios.chosen - ratios.rejected)
    return -(1 - label_smoothing) * logsigmoid(h) - label_smoothing * logsigmoid(-h)


def dpo_ipo(ratios: LogRatios, beta: float, label_smoothing: float) -> Tensor:
    """`(chosen/length - rejected/length - 1 / (2 beta))^2` [P]: IPO, https://arxiv.org/abs/2310.12036, eq. 17.

    The ratios are means over tokens, as the authors told TRL, so that long answers do not overshoot the target.

    Raises:
        ValueError: label smoothing, which IPO's regression has no place for.
    """
    if label_smoothing:
        raise ValueError(f"label_smoothing is for the sigmoid loss: got {label_smoothing} with ipo; set it to 0")
    difference = ratios.chosen / ratios.chosen_lengths - ratios.rejected / ratios.rejected_lengths
    return (difference - 1 / (2 * beta)).square()


DPO_LOSSES: dict[DPOLossName, Callable[[LogRatios, float, float], Tensor]] = {"sigmoid": dpo_sigmoid, "ipo": dpo_ipo}


def sum_by_sequence(tokens: Tensor, sequence_ids: Tensor, num_sequences: int) -> Tensor:
    """Packed values [N] of tokens to sums [S] of their sequences; 0 for a sequence without a token.

    Args:
        tokens: [N] any float type, differentiable.
        sequence_ids: [N] int64 in 0..num_sequences-1.
        num_sequences: S.
    """
    return torch.zeros(num_sequences, dtype=tokens.dtype, device=tokens.device).index_add(0, sequence_ids, tokens)
