"""User-defined advantage, loss and filter equal the built-in ones that they copy."""

from pathlib import Path

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.advantages import compute_scores
from slurm_rl.algorithms.credit import build_train_sequences
from slurm_rl.algorithms.filters import keep_mask
from slurm_rl.algorithms.losses import ClipRange, LossInputs
from slurm_rl.algorithms.policy_loss import compute_loss
from slurm_rl.algorithms.shaping import apply_group_reward
from slurm_rl.config.algorithm import AlgorithmConfig, FilterConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.registry import AdvantageEntry, Entry, LossEntry, find_advantage, find_loss
from slurm_rl.config.user_parts import check_function, named_functions
from slurm_rl.data.groups import Group
from slurm_rl.errors import ConfigError
from tests.unit.rl.batch_kit import make_group

FILE = Path(__file__).parents[1] / "config" / "user_files" / "my_parts.py"
INPUTS = LossInputs(
    logprobs=torch.linspace(-3, -0.1, 8, requires_grad=True),
    old_logprobs=torch.linspace(-1, -1.5, 8),
    advantages=torch.tensor([1.0, -1.0] * 4),
    sequence_ids=torch.zeros(8, dtype=torch.int64),
    num_sequences=1,
)
CLIP = ClipRange(low=0.2, high=0.28, dual=3.0)


def write(folder: Path, body: str) -> str:
    (folder / "my.py").write_text(f"import torch\n{body}\n")
    return f"{folder}/my.py:f"


def test_user_parts_equal_built_in_ones() -> None:
    rewards, known = torch.rand(5, 4), torch.rand(5, 4) > 0.3
    mine, ours = find_advantage(f"{FILE}:group_norm"), find_advantage("group_norm")
    assert torch.equal(compute_scores(mine, rewards, known), compute_scores(ours, rewards, known))
    found, wanted = (compute_loss(find_loss(name), INPUTS, CLIP) for name in (f"{FILE}:grpo", "grpo"))
    assert torch.equal(found.loss, wanted.loss) and torch.equal(found.clipped, wanted.clipped)
    groups = [make_group(0, [1.0, 0.0]), make_group(1, [1.0, 1.0]), make_group(2, [0.0, 0.0])]
    configs = FilterConfig(function=f"{FILE}:keep_signal"), FilterConfig(drop_zero_variance_groups=True)
    assert [keep_mask(groups, config) for config in configs] == [[True] * 2 + [False] * 4] * 2


def test_filter_is_combined_and_drops_failed_rewards(tmp_path: Path) -> None:
    spec = write(tmp_path, "def f(groups, config): return [[True] * len(g.completions) for g in groups]")
    groups = [make_group(0, [1.0, None]), make_group(1, [1.0, 1.0])]
    config = FilterConfig(function=spec, drop_zero_variance_groups=True)
    assert keep_mask(groups, config) == [False, False, False, False]
    assert keep_mask(groups, FilterConfig(function=spec)) == [True, False, True, True]


def test_flags_are_those_of_function(tmp_path: Path) -> None:
    spec = write(tmp_path, "def f(r, k, *, needs_group=True, per_token=True): ...")
    assert find_advantage(spec) == AdvantageEntry(spec, needs_group=True, per_token=True)
    loss = write(tmp_path, "def f(inputs, clip, *, per_sequence=True): ...")
    kinds = [
        load_config(["+exp=demo", "model.dtype=bfloat16", f"algorithm.loss={name}"]).correction_kind
        for name in (loss, "grpo")
    ]
    assert find_loss(loss) == LossEntry(loss, per_sequence=True)
    assert kinds == ["geometric_mask", "token_tis"]


def test_token_advantage_is_reward_of_last_token(tmp_path: Path) -> None:
    spec = write(tmp_path, "def f(r, k, *, per_token=True): return torch.where(k, r, 0.0)")
    groups = [make_group(index, [1.0, 0.5], [3, 5]) for index in range(2)]
    mine, ours = (
        build_train_sequences(groups, AlgorithmConfig(advantage=name), None) for name in (spec, "reinforce_pp")
    )
    assert [sequence.num_trained for sequence in mine] == [3, 5, 3, 5]
    assert all(np.array_equal(one.advantages, other.advantages) for one, other in zip(mine, ours, strict=True))


@pytest.mark.parametrize(
    ("returned", "seen"), [("None", "NoneType"), ("r[:1]", r"\[1, 2\]"), ("r / 0", "inf"), ("1.0", "float")]
)
def test_scores_of_other_type_are_refused(returned: str, seen: str, tmp_path: Path) -> None:
    row = AdvantageEntry(write(tmp_path, f"def f(r, k): return {returned}"))
    with pytest.raises(ConfigError, match=rf"one finite number per reward, \[3, 2\]; got .*{seen}"):
        compute_scores(row, torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    "returned", ["None", "inputs.logprobs", "TokenLoss(loss=inputs.logprobs.sum(), clipped=0 * inputs.logprobs)"]
)
def test_loss_of_other_type_is_refused(returned: str, tmp_path: Path) -> None:
    body = f"from slurm_rl.algorithms.losses import TokenLoss\ndef f(inputs, clip): return {returned}"
    with pytest.raises(ConfigError, match=r"must return algorithms\.losses\.TokenLoss.* for \[8\] tokens\. Next: "):
        compute_loss(LossEntry(write(tmp_path, body)), INPUTS, CLIP)


def test_incomplete_filter_answer_is_refused(tmp_path: Path) -> None:
    spec = write(tmp_path, "def f(groups, config): return [[True] for g in groups]")
    with pytest.raises(ConfigError, match="got 2 values for 2 groups; expected 4 in 2"):
        keep_mask([make_group(0, [1.0, 0.0]), make_group(1, [1.0, 0.0])], FilterConfig(function=spec))


def test_unrunnable_file_is_named(tmp_path: Path) -> None:
    spec = write(tmp_path, "import no_such_module\ndef f(groups, config): ...")
    with pytest.raises(ConfigError, match=r"my\.py:f must be importable; got ModuleNotFoundError: .*no_such_module"):
        Entry(spec).load()


JUDGES = """
import math

def shortest(prompt, completions, rewards):
    least = min(len(one.token_ids) for one in completions)
    return [(reward or 0.0) * (len(one.token_ids) == least) for one, reward in zip(completions, rewards)]

def raises(prompt, completions, rewards): raise KeyError(prompt.text)
def nan(prompt, completions, rewards): return [math.nan] * len(completions)
def few(prompt, completions, rewards): return [1.0]
def words(prompt, completions, rewards): return ["a"] * len(completions)
def other(groups): return []
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "judge.py"
    file.write_text(JUDGES)
    return f"{file}:"


def make() -> Group:
    return make_group(0, [1.0, 1.0, None], [2, 1, 1])


def test_group_rewards_keep_failures(spec: str) -> None:
    [found] = apply_group_reward(f"{spec}shortest", [make()])
    assert [result.value for result in found.results] == [0.0, 1.0, None]
    assert [result.failure for result in found.results] == [None, None, make().results[2].failure]


@pytest.mark.parametrize(
    ("name", "cause"), [("raises", "exception"), ("nan", "bad score"), ("few", "bad score"), ("words", "bad score")]
)
def test_unjudgeable_group_fails_with_cause(spec: str, name: str, cause: str) -> None:
    bad, good = apply_group_reward(f"{spec}{name}", [make()])[0], make()
    assert [result.value for result in bad.results] == [None] * 3
    assert [result.failure for result in bad.results] == [cause, cause, good.results[2].failure]
    assert bad.results[0].detail


def test_group_reward_file_is_checked_before_run(spec: str) -> None:
    config = load_config(["+exp=demo", f"algorithm.group_reward={spec}shortest"])
    assert named_functions(config)["algorithm.group_reward"] == f"{spec}shortest"
    check_function(config, "algorithm.group_reward", f"{spec}shortest")
    with pytest.raises(ConfigError, match=r"group_reward is called as other\(prompt, completions, rewards\)"):
        check_function(config, "algorithm.group_reward", f"{spec}other")
