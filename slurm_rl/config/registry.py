"""Registries of the parts that a config selects by name. No torch: a row holds the import path `module:name`.

To add a part, write the function and its row. Users need no row: see user_parts.py for `file.py:name`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from slurm_rl.config.section import one_of
from slurm_rl.config.user_files.load import is_file, load_function
from slurm_rl.config.user_files.read import Form, read_function
from slurm_rl.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """Import path of a part."""

    function: str
    """`module:name`, or a user's `file.py:name`."""

    def load(self) -> Callable[..., Any]:
        """Import the function.

        Raises:
            ConfigError: a user's file cannot be imported.
        """
        try:
            return load_function(self.function)
        except Exception as error:
            if not is_file(self.function):
                raise
            raise ConfigError(
                f"{self.function} must be importable",
                seen=f"{type(error).__name__}: {error}",
                action="correct the file and submit again: the run keeps the copy it started with",
            ) from error


@dataclass(frozen=True)
class AdvantageEntry(Entry):
    """(rewards [P, G], known [P, G]) -> scores [P, G]; see algorithms/advantages.py."""

    needs_group: bool = False
    """Compares the completions of a prompt, so group_size must be at least 2."""
    per_token: bool = False
    """The score is a reward of the last token, from which per-token advantages are computed."""
    needs_values: bool = False
    """Per-token advantages use a critic's values, so the run trains a critic."""
    per_turn: bool = False
    """Scores of whole episodes give the baseline; each turn gets its own advantage."""


@dataclass(frozen=True)
class LossEntry(Entry):
    """(LossInputs, ClipRange) -> TokenLoss; see algorithms/losses.py."""

    per_sequence: bool = False
    """The ratio is per sequence, so `correction.kind=auto` masks whole sequences too."""


@dataclass(frozen=True)
class KLEstimatorEntry(Entry):
    """Logprobs [N] of policy and reference -> KL [N]; see algorithms/kl.py."""

    in_loss: bool = True
    """The gradient is that of a KL divergence, so the estimator can be a loss term."""


@dataclass(frozen=True)
class DPOLossEntry(Entry):
    """(LogRatios, DPOConfig) -> losses [P]; see algorithms/preference.py."""

    smoothed: bool = False
    """Uses dpo.label_smoothing."""
    needs_smoothing: bool = False
    """Takes the logarithm of dpo.label_smoothing, which must then be above 0."""
    absolute: bool = False
    """Uses the ratio of each answer, not only the difference of the pair."""


@dataclass(frozen=True)
class VerifierEntry(Entry):
    """(response, reference) -> score; see rewards/verifiers.py."""

    judges_answer: bool = False
    """The score measures correctness, not format."""
    check: str | None = None
    """`module:function` that raises for a reference answer that no response can match."""


_ADVANTAGES, _LOSSES = "slurm_rl.algorithms.advantages", "slurm_rl.algorithms.losses"
_KL, _PREFERENCE = "slurm_rl.algorithms.kl", "slurm_rl.algorithms.preference"

ADVANTAGES: Final[dict[str, AdvantageEntry]] = {
    "group_norm": AdvantageEntry(f"{_ADVANTAGES}:group_norm", needs_group=True),
    "dr_grpo": AdvantageEntry(f"{_ADVANTAGES}:dr_grpo", needs_group=True),
    "rloo": AdvantageEntry(f"{_ADVANTAGES}:rloo", needs_group=True),
    "turn_rloo": AdvantageEntry(f"{_ADVANTAGES}:rloo", needs_group=True, per_turn=True),
    "gae": AdvantageEntry(f"{_ADVANTAGES}:plain", per_token=True, needs_values=True),
    "reinforce_pp": AdvantageEntry(f"{_ADVANTAGES}:plain", per_token=True),
    "reinforce_pp_baseline": AdvantageEntry(f"{_ADVANTAGES}:dr_grpo", needs_group=True, per_token=True),
    "none": AdvantageEntry(f"{_ADVANTAGES}:nothing"),
}

POLICY_LOSSES: Final[dict[str, LossEntry]] = {
    "grpo": LossEntry(f"{_LOSSES}:grpo"),
    "gspo": LossEntry(f"{_LOSSES}:gspo", per_sequence=True),
    "gspo_token": LossEntry(f"{_LOSSES}:gspo_token", per_sequence=True),
    "cispo": LossEntry(f"{_LOSSES}:cispo"),
}

CORRECTIONS: Final[dict[str, Entry]] = {
    "token_tis": Entry(f"{_LOSSES}:token_tis"),
    "sequence_mask": Entry(f"{_LOSSES}:sequence_mask"),
    "geometric_mask": Entry(f"{_LOSSES}:geometric_mask"),
    "icepop": Entry(f"{_LOSSES}:icepop"),
}

KL_ESTIMATORS: Final[dict[str, KLEstimatorEntry]] = {
    "k1": KLEstimatorEntry(f"{_KL}:k1", in_loss=False),
    "k2": KLEstimatorEntry(f"{_KL}:k2"),
    "k3": KLEstimatorEntry(f"{_KL}:k3"),
}

DPO_LOSSES: Final[dict[str, DPOLossEntry]] = {
    "sigmoid": DPOLossEntry(f"{_PREFERENCE}:dpo_sigmoid", smoothed=True),
    "sigmoid_norm": DPOLossEntry(f"{_PREFERENCE}:dpo_sigmoid_norm"),
    "hinge": DPOLossEntry(f"{_PREFERENCE}:dpo_hinge"),
    "ipo": DPOLossEntry(f"{_PREFERENCE}:dpo_ipo"),
    "robust": DPOLossEntry(f"{_PREFERENCE}:dpo_robust", smoothed=True),
    "exo_pair": DPOLossEntry(f"{_PREFERENCE}:dpo_exo_pair", smoothed=True, needs_smoothing=True),
    "nca_pair": DPOLossEntry(f"{_PREFERENCE}:dpo_nca_pair", absolute=True),
    "bco_pair": DPOLossEntry(f"{_PREFERENCE}:dpo_bco_pair", absolute=True),
    "sppo_hard": DPOLossEntry(f"{_PREFERENCE}:dpo_sppo_hard", absolute=True),
    "apo_zero": DPOLossEntry(f"{_PREFERENCE}:dpo_apo_zero", absolute=True),
    "apo_down": DPOLossEntry(f"{_PREFERENCE}:dpo_apo_down", absolute=True),
    "discopop": DPOLossEntry(f"{_PREFERENCE}:dpo_discopop"),
}

DIVERGENCES: Final[dict[str, Entry]] = {
    "reverse_kl": Entry(f"{_PREFERENCE}:reverse_kl"),
    "forward_kl": Entry(f"{_PREFERENCE}:forward_kl"),
    "js_divergence": Entry(f"{_PREFERENCE}:js_divergence"),
    "alpha_divergence": Entry(f"{_PREFERENCE}:alpha_divergence"),
}

TOOLS: Final[dict[str, Entry]] = {"python": Entry("slurm_rl.envs.python_tool:python")}

_REWARDS = "slurm_rl.rewards"
VERIFIERS: Final[dict[str, VerifierEntry]] = {
    "arithmetic": VerifierEntry(
        f"{_REWARDS}.verifiers:score_arithmetic", judges_answer=True, check=f"{_REWARDS}.verifiers:check_integer"
    ),
    "math": VerifierEntry(
        f"{_REWARDS}.math_answer:score_math", judges_answer=True, check=f"{_REWARDS}.math_answer:check_reference"
    ),
    "code": VerifierEntry(
        f"{_REWARDS}.code_answer:score_code", judges_answer=True, check=f"{_REWARDS}.code_answer:parse_code_tests"
    ),
    "format": VerifierEntry(f"{_REWARDS}.verifiers:score_format"),
}


AdvantageName = Annotated[str, one_of(ADVANTAGES, or_file=True)]
LossName = Annotated[str, one_of(POLICY_LOSSES, or_file=True)]
CorrectionName = Annotated[str, one_of(("auto", *CORRECTIONS))]
KLEstimatorName = Annotated[str, one_of(KL_ESTIMATORS)]
DPOLossName = Annotated[str, one_of(DPO_LOSSES)]
DivergenceName = Annotated[str, one_of(DIVERGENCES)]
VerifierName = Annotated[str, one_of(VERIFIERS)]

ADVANTAGE_FORM: Final = Form("algorithm.advantage", ("rewards", "known"), ("needs_group", "per_token", "per_turn"))
LOSS_FORM: Final = Form("algorithm.loss", ("inputs", "clip"), ("per_sequence",))


@cache
def find_advantage(name: str) -> AdvantageEntry:
    """Return the row of a built-in advantage, or one for a user's function."""
    return AdvantageEntry(name, **read_function(name, ADVANTAGE_FORM)) if is_file(name) else ADVANTAGES[name]


@cache
def find_loss(name: str) -> LossEntry:
    """Return the row of a built-in loss, or one for a user's function."""
    return LossEntry(name, **read_function(name, LOSS_FORM)) if is_file(name) else POLICY_LOSSES[name]
