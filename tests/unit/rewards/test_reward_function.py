import sys
from pathlib import Path

import pytest

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import RewardError
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import Failure, RewardItem
from slurm_rl.rewards.worker import call_function
from tests.unit.rewards.service_kit import ODD_FUNCTION, build_items

FILE = ODD_FUNCTION.rpartition(":")[0]


def build_pool(name: str) -> RewardPool:
    return RewardPool(RewardConfig(num_workers=2, timeout_s=1.0, function=f"{FILE}:{name}"))


def test_function_returns_reward_and_extra_metrics() -> None:
    with build_pool("reward_func") as pool:
        results = pool.score(build_items(70, {5: "hang", 9: "exit", 11: "nan"}))
    assert {i: r.failure for i, r in enumerate(results) if r.failure} == {5: "hang", 9: "crash", 11: "bad score"}
    assert results[12].value == 1.5
    assert results[12].parts == {"reward": 1.5, "scores": 1.0, "length": 9.0}


def test_reward_need_not_lie_between_0_and_1() -> None:
    right, wrong = (RewardItem(prompt="3+4=", completion=text, answer="7") for text in "78")
    with build_pool("plain") as pool:
        assert [result.value for result in pool.score([right, wrong])] == [2.0, -1.0]
        assert not any(Path(FILE).stem in name for name in sys.modules if name.startswith("slurm_rl_user"))


def test_unrunnable_file_is_named() -> None:
    with pytest.raises(RewardError, match=r"function \(.*:nothing\): AttributeError"), build_pool("nothing"):
        pass


class Tensor:
    """The part of torch.Tensor that we use."""

    def __init__(self, values: object) -> None:
        self.values = values

    def tolist(self) -> object:
        return self.values


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (0.5, {"reward": 0.5}),
        ([1], {"reward": 1.0}),
        (Tensor([0.25]), {"reward": 0.25}),
        ([Tensor(0.25)], {"reward": 0.25}),
        ({"rewards": Tensor([[2.0]]), "extra_logs": {"a": Tensor([1.0]), "b": "text"}}, {"reward": 2.0, "a": 1.0}),
        ({"rewards": [1.0], "reward": [9.0]}, {"reward": 1.0}),
    ],
)
def test_answer_forms_are_accepted(answer: object, told: dict[str, float]) -> None:
    assert call_function(lambda *_: answer, build_items(1)[0]) == told


@pytest.mark.parametrize("answer", [None, [], {}, "1.0", [float("inf")], 10**400, {"rewards": None}, [[1.0, 2.0]]])
def test_non_number_is_failure(answer: object) -> None:
    found = call_function(lambda *_: answer, build_items(1)[0])
    assert isinstance(found, Failure)
    assert found.cause == "bad score"
