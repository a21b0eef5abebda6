from pathlib import Path

import pytest

from slurm_rl.algorithms.shaping import apply_group_reward
from slurm_rl.config.load import load_config
from slurm_rl.config.user_parts import check_function, named_functions
from slurm_rl.data.groups import Group
from slurm_rl.errors import ConfigError
from tests.unit.rl.test_batch import group

FILE = """
import math

def shortest(prompt, completions, rewards):
    least = min(len(one.token_ids) for one in completions)
    return [(reward or 0.0) * (len(one.token_ids) == least) for one, reward in zip(completions, rewards)]

def raises(prompt, completions, rewards): raise KeyError(prompt.text)
def nan(prompt, completions, rewards): return [math.nan] * len(completions)
def few(prompt, completions, rewards): return [1.0]
def words(prompt, completions, rewards): return ["a"] * len(completions)
def nothing(prompt, completions, rewards): return None
def other(groups): return []
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "judge.py"
    file.write_text(FILE)
    return f"{file}:"


def make() -> Group:
    return group([1.0, 1.0, None], [[9, 1], [8], [7]])


def test_group_rewards_keep_failures(spec: str) -> None:
    [found] = apply_group_reward(f"{spec}shortest", [make()])
    assert [result.value for result in found.results] == [0.0, 1.0, None]
    assert [result.failure for result in found.results] == [None, None, make().results[2].failure]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("raises", "exception"),
        ("nan", "bad score"),
        ("few", "bad score"),
        ("words", "bad score"),
        ("nothing", "exception"),
    ],
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
