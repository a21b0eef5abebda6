import pytest

from slurm_rl.config.registry import VERIFIERS
from slurm_rl.errors import DataError
from slurm_rl.rewards.math_answer import score_math
from slurm_rl.rewards.verifiers import score_arithmetic, score_format
from slurm_rl.rewards.worker import load_verifier


@pytest.mark.parametrize("name", sorted(VERIFIERS))
def test_every_verifier_of_the_table_scores(name: str) -> None:
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


def test_arithmetic_knows_zero_and_negative_answers() -> None:
    assert score_arithmetic("0", "0") == score_arithmetic("-12", "-12") == 1.0


@pytest.mark.parametrize("answer", ["", "seven", "7.0", "07", " 7", "-0", "1_000", "\u0667", "7\n"])
def test_arithmetic_refuses_an_answer_that_nothing_could_match(answer: str) -> None:
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
def test_format_wants_each_tag_exactly_once(completion: str, score: float) -> None:
    assert score_format(completion, "") == score


@pytest.mark.parametrize("answer", ["60", "$60$", r"$\boxed{60}$", r"\boxed{60}", r"\(60\)", r"\$60"])
def test_math_takes_an_answer_with_or_without_dollars(answer: str) -> None:
    assert score_math("<think>$3$</think><answer>$60$</answer>", answer) == 1.0
    assert score_math(r"it is \boxed{60.0}, not $61$", answer) == 1.0
    assert score_math(r"it is \boxed{61}, not $60$", answer) == 0.0


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        (r"$\frac{2}{4}$", r"\frac12", 1),
        (r"$(x+1)^2$", "x^2+2x+1", 1),
        (r"$x=5$", "5", 1),
        ("60", "60", 0),  # LaTeX only
        ("", "60", 0),
        (r"$60$ or rather \boxed{\frac{6}{}", "60", 0),
        (r"first $60$, no, $\frac{6}{$", "60", 0),
    ],
)
def test_math_compares_values(completion: str, answer: str, score: float) -> None:
    assert score_math(completion, answer) == score


@pytest.mark.parametrize("answer", ["", "$$", r"\frac{1}{", "$60"])
def test_an_answer_that_math_cannot_read_is_an_error_and_never_a_score(answer: str) -> None:
    with pytest.raises(DataError, match="reference answer that is LaTeX; got '") as caught:
        score_math("$1$", answer)
    assert repr(answer) in str(caught.value)
