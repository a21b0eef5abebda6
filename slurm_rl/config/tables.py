"""The parts that a config chooses by name: one row each, with all that others must know of it. No torch.

To add one, write the function and its row. The first name of a row is the function, `module:name`, which is imported by
what runs it. Users need no row: an advantage, a loss, a filter and a reward may be `file.py:name`; see functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from slurm_rl.config.section import one_of
from slurm_rl.config.user_files.load import is_file, load_function
from slurm_rl.errors import ConfigError


@dataclass(frozen=True)
class Row:
    """What every part has."""

    function: str
    """`module:name`, or a user's `file.py:name`."""

    def load(self) -> Callable[..., Any]:
        """Import the function.

        Raises:
            ConfigError: a user's file that cannot be run.
        """
        try:
            return load_function(self.function)
        except Exception as error:
            if not is_file(self.function):
                raise
            raise ConfigError(
                f"{self.function} must be importable",
                seen=f"{type(error).__name__}: {error}",
                action="correct the file and submit again: the run keeps the copy that it began with",
            ) from error


@dataclass(frozen=True)
class AdvantageRow(Row):
    """Rewards [P, G] and which are known [P, G] to scores [P, G]; see math/advantages.py."""

    needs_group: bool = False
    """It compares the completions of one prompt, so that group_size must be at least 2."""
    per_token: bool = False
    """Its scores are rewards of the last token, of which math/advantages.py makes an advantage of each token."""
    needs_values: bool = False
    """That takes a critic's values."""
    per_turn: bool = False
    """Of its scores, which are of whole episodes, their baselines are made; each turn has an advantage of its own, see
    rl/algorithm/turn_credit.py."""


@dataclass(frozen=True)
class LossRow(Row):
    """`LossInputs` and `ClipRange` to `TokenLoss`; see math/losses.py."""

    per_sequence: bool = False
    """Its ratio is per sequence, so `correction.kind=auto` masks whole sequences too."""


@dataclass(frozen=True)
class KLEstimatorRow(Row):
    """Logprobs [N] of policy and reference to KL [N]; see math/kl.py."""

    in_loss: bool = True
    """Its gradient is that of a distance, so that it may be a term of the loss."""


@dataclass(frozen=True)
class DPOLossRow(Row):
    """`LogRatios` and `DPOConfig` to losses [P]; see math/preference.py."""

    smoothed: bool = False
    """It reads dpo.label_smoothing."""
    needs_smoothing: bool = False
    """It takes the logarithm of dpo.label_smoothing."""
    absolute: bool = False
    """It reads each answer's ratio by itself, where others read how far two of one prompt are apart."""


@dataclass(frozen=True)
class VerifierRow(Row):
    """A `Verifier`; see rewards/verifiers.py."""

    judges_answer: bool = False
    """Its score says whether the answer is right; else it is of the form."""
    check: str | None = None
    """`module:function` that raises for a reference answer that no completion can score against."""


_ADVANTAGES, _LOSSES = "slurm_rl.algorithms.advantages", "slurm_rl.algorithms.losses"
_KL, _PREFERENCE = "slurm_rl.algorithms.kl", "slurm_rl.algorithms.preference"

ADVANTAGES: Final[dict[str, AdvantageRow]] = {
    "group_norm": AdvantageRow(f"{_ADVANTAGES}:group_norm", needs_group=True),
    "dr_grpo": AdvantageRow(f"{_ADVANTAGES}:dr_grpo", needs_group=True),
    "rloo": AdvantageRow(f"{_ADVANTAGES}:rloo", needs_group=True),
    "turn_rloo": AdvantageRow(f"{_ADVANTAGES}:rloo", needs_group=True, per_turn=True),
    "gae": AdvantageRow(f"{_ADVANTAGES}:plain", per_token=True, needs_values=True),
    "reinforce_pp": AdvantageRow(f"{_ADVANTAGES}:plain", per_token=True),
    "reinforce_pp_baseline": AdvantageRow(f"{_ADVANTAGES}:dr_grpo", needs_group=True, per_token=True),
    "none": AdvantageRow(f"{_ADVANTAGES}:nothing"),
}

POLICY_LOSSES: Final[dict[str, LossRow]] = {
    "grpo": LossRow(f"{_LOSSES}:grpo"),
    "gspo": LossRow(f"{_LOSSES}:gspo", per_sequence=True),
    "gspo_token": LossRow(f"{_LOSSES}:gspo_token", per_sequence=True),
    "cispo": LossRow(f"{_LOSSES}:cispo"),
}

CORRECTIONS: Final[dict[str, Row]] = {
    "token_tis": Row(f"{_LOSSES}:token_tis"),
    "sequence_mask": Row(f"{_LOSSES}:sequence_mask"),
    "geometric_mask": Row(f"{_LOSSES}:geometric_mask"),
    "icepop": Row(f"{_LOSSES}:icepop"),
}

KL_ESTIMATORS: Final[dict[str, KLEstimatorRow]] = {
    "k1": KLEstimatorRow(f"{_KL}:k1", in_loss=False),
    "k2": KLEstimatorRow(f"{_KL}:k2"),
    "k3": KLEstimatorRow(f"{_KL}:k3"),
}

DPO_LOSSES: Final[dict[str, DPOLossRow]] = {
    "sigmoid": DPOLossRow(f"{_PREFERENCE}:dpo_sigmoid", smoothed=True),
    "sigmoid_norm": DPOLossRow(f"{_PREFERENCE}:dpo_sigmoid_norm"),
    "hinge": DPOLossRow(f"{_PREFERENCE}:dpo_hinge"),
    "ipo": DPOLossRow(f"{_PREFERENCE}:dpo_ipo"),
    "robust": DPOLossRow(f"{_PREFERENCE}:dpo_robust", smoothed=True),
    "exo_pair": DPOLossRow(f"{_PREFERENCE}:dpo_exo_pair", smoothed=True, needs_smoothing=True),
    "nca_pair": DPOLossRow(f"{_PREFERENCE}:dpo_nca_pair", absolute=True),
    "bco_pair": DPOLossRow(f"{_PREFERENCE}:dpo_bco_pair", absolute=True),
    "sppo_hard": DPOLossRow(f"{_PREFERENCE}:dpo_sppo_hard", absolute=True),
    "apo_zero": DPOLossRow(f"{_PREFERENCE}:dpo_apo_zero", absolute=True),
    "apo_down": DPOLossRow(f"{_PREFERENCE}:dpo_apo_down", absolute=True),
    "discopop": DPOLossRow(f"{_PREFERENCE}:dpo_discopop"),
}

DIVERGENCES: Final[dict[str, Row]] = {
    "reverse_kl": Row(f"{_PREFERENCE}:reverse_kl"),
    "forward_kl": Row(f"{_PREFERENCE}:forward_kl"),
    "js_divergence": Row(f"{_PREFERENCE}:js_divergence"),
    "alpha_divergence": Row(f"{_PREFERENCE}:alpha_divergence"),
}

TOOLS: Final[dict[str, Row]] = {"python": Row("slurm_rl.envs.python_tool:python")}

_REWARDS = "slurm_rl.rewards"
VERIFIERS: Final[dict[str, VerifierRow]] = {
    "arithmetic": VerifierRow(
        f"{_REWARDS}.verifiers:score_arithmetic", judges_answer=True, check=f"{_REWARDS}.verifiers:check_integer"
    ),
    "math": VerifierRow(
        f"{_REWARDS}.math_answer:score_math", judges_answer=True, check=f"{_REWARDS}.math_answer:check_reference"
    ),
    "code": VerifierRow(
        f"{_REWARDS}.code_answer:score_code", judges_answer=True, check=f"{_REWARDS}.code_answer:parse_code_tests"
    ),
    "format": VerifierRow(f"{_REWARDS}.verifiers:score_format"),
}


AdvantageName = Annotated[str, one_of(ADVANTAGES, or_file=True)]
LossName = Annotated[str, one_of(POLICY_LOSSES, or_file=True)]
CorrectionName = Annotated[str, one_of(("auto", *CORRECTIONS))]
KLEstimatorName = Annotated[str, one_of(KL_ESTIMATORS)]
DPOLossName = Annotated[str, one_of(DPO_LOSSES)]
DivergenceName = Annotated[str, one_of(DIVERGENCES)]
VerifierName = Annotated[str, one_of(VERIFIERS)]
