import sys
from pathlib import Path

import pytest

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import DataError, RewardError
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import Failure, RewardItem
from slurm_rl.rewards.verifiers import score_arithmetic, score_format
from slurm_rl.rewards.worker import call_function, load_verifier
from tests.unit.rewards.service_kit import ODD_FUNCTION, build_items


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_listed_verifiers_score(name: str) -> None:
    answer = '{"stdio": [{"stdin": "", "stdout": "7"}]}' if name == "code" else "7"
    assert load_verifier(VERIFIERS[name].function)("no", answer) == 0.0


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("7", 1),
        (" 7\n", 1),
        ("07", 0),
        ("7.0", 0),
        ("", 0),
        ("\u0667", 0),
        ("7 7", 0),
    ],
)
def test_arithmetic_compares_digits(completion: str, score: float) -> None:
    assert score_arithmetic(completion, "7") == score


def test_arithmetic_accepts_zero_and_negative_answers() -> None:
    assert score_arithmetic("0", "0") == score_arithmetic("-12", "-12") == 1.0


@pytest.mark.parametrize("answer", ["", "seven", "7.0", "07", " 7", "-0", "1_000", "\u0667", "7\n"])
def test_arithmetic_refuses_unmatchable_answer(answer: str) -> None:
    with pytest.raises(DataError, match="decimal integer as reference answer; got '"):
        score_arithmetic(answer, answer)


GOOD = "<think>2+2\n\nis 4</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOOD, 1),
        ("<think></think><answer></answer>", 1),
        (f" {GOOD}", 0),
        ("<think>2+2</think>\n<answer>4</answer>", 0),
        ("<think>2+2</think><answer>4", 0),
        ("<answer>4</answer><think>2+2</think>", 0),
        ("<think>a<think>b</think><answer>4</answer>", 0),
        ("<think>a</think></think><answer>4</answer>", 0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0),
        ("<think></think><answer></think><answer></answer>", 0),
        ("", 0),
    ],
)
def test_format_requires_tags_once(completion: str, score: float) -> None:
    assert score_format(completion, "") == score


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
