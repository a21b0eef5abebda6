import pytest

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.errors import DataError
from slurm_rl.rewards.verifiers import score_arithmetic, score_format
from slurm_rl.rewards.worker import load_verifier


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
        ("3+4", 0),
        ("", 0),
        ("77", 0),
        ("+7", 0),
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
        (f"{GOOD}\n", 0),
        ("<think>2+2</think>\n<answer>4</answer>", 0),
        ("<think>2+2</think><answer>4", 0),
        ("<answer>4</answer><think>2+2</think>", 0),
        ("<think>a<think>b</think><answer>4</answer>", 0),
        ("<think>a</think></think><answer>4</answer>", 0),
        (GOOD + GOOD, 0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0),
        ("<think></think><answer></think><answer></answer>", 0),
        ("", 0),
    ],
)
def test_format_requires_tags_once(completion: str, score: float) -> None:
    assert score_format(completion, "") == score
