"""Compare scores of the `math` verifier with human judgement."""

import pytest

from slurm_rl.errors import DataError
from slurm_rl.rewards.math_answer import check_reference, score_math


@pytest.mark.parametrize(
    ("completion", "answer", "score"),
    [
        # The last box counts, after the reasoning.
        (r"We get \boxed{3}. Wait, no: \boxed{5}", "5", 1.0),
        (r"We get \boxed{3}. Wait, no: \boxed{5}", "3", 0.0),
        (r"\boxed{3} no wait \boxed{4}", "4", 1.0),
        (r"<think>\boxed{3}</think>\boxed{4}", "4", 1.0),
        (r"<think>so \boxed{3}</think>I do not know.", "3", 0.0),
        (r"<think>so \boxed{3}</think>It is $4$.", "4", 1.0),
        (r"<think>so \boxed{3}", "3", 1.0),  # without </think> the answer has no known start
        # Several boxes joined by a word are one answer.
        (r"$x=\boxed{3}$ or $x=\boxed{4}$", r"\{3,4\}", 1.0),
        (r"\boxed{3} and \boxed{4}", "3,4", 1.0),
        (r"\boxed{3}, \boxed{4}", "4", 0.0),
        (r"\boxed{4}, \boxed{4}", "4", 1.0),
        # Truncated: an earlier formula may have been revoked.
        (r"It is \boxed{3}, no, \boxed{", "3", 0.0),
        (r"so $x=3$ hence the answer is \boxed{", "3", 0.0),
        (r"It is \boxed{3}, or \boxed{\frac{1}{2}", "3", 0.0),
        (r"It is \boxed{3}", "3", 1.0),
        (r"It is \boxed{}", "3", 0.0),
        (r"so $x=3$ hence $y = ", "3", 0.0),
        (r"so \(x=3\) hence \[y = ", "3", 0.0),
        (r"so $x=3$, at a price of $5", "3", 1.0),
        (r"so \(x=3\). The rest follows.", "3", 1.0),
        # Forms of boxes.
        (r"\boxed {7}", "7", 1.0),
        (r"\fbox{7}", "7", 1.0),
        (r"\boxed7", "7", 1.0),
        (r"\boxed{$7$}", "7", 1.0),
        (r"$$\boxed{\left\{1, 2\right\}}$$", r"\{1,2\}", 1.0),
        (r"\boxed{7.}", "7", 1.0),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{\sqrt{2}}{2}", 1.0),
        (r"$\frac{2}{4}$", r"$\boxed{\frac12}$", 1.0),
        (r"$(x+1)^2$", r"\(x^2+2x+1\)", 1.0),
        # Equations.
        (r"\boxed{5=6}", "6", 0.0),
        (r"\boxed{2+3=5}", "5", 1.0),
        (r"\boxed{x=5}", "5", 1.0),
        (r"\boxed{5}", "x=5", 1.0),
        (r"\boxed{x=6}", "5", 0.0),
        # Percent.
        (r"\boxed{50\%}", r"50\%", 1.0),
        (r"\boxed{50}", r"50\%", 1.0),
        (r"\boxed{0.5}", r"50\%", 1.0),
        (r"\boxed{\frac{1}{2}}", r"50\%", 1.0),
        (r"\boxed{50\%}", "50", 1.0),
        (r"\boxed{50\%}", "0.5", 1.0),
        (r"\boxed{50\text{ percent}}", "50", 1.0),
        (r"\boxed{0.5\%}", r"50\%", 0.0),
        (r"\boxed{40\%}", r"50\%", 0.0),
        (r"It is $50\%$.", "0.5", 1.0),
        # Numbers.
        (r"\boxed{1\,000}", "1000", 1.0),
        (r"\boxed{1\,000}", "0", 0.0),
        (r"\boxed{10 000}", "10000", 1.0),
        (r"\boxed{1{,}234{,}567}", "1234567", 1.0),
        (r"\boxed{1,234,567}", "1234567", 1.0),
        (r"\boxed{\text{1,000}}", "1000", 1.0),
        (r"\boxed{1000}", r"1\,000", 1.0),
        (r"\boxed{0.\overline{3}}", r"\frac{1}{3}", 1.0),
        (r"\boxed{\frac{7}{6}}", r"1.1\overline{6}", 1.0),
        (r"\boxed{1.5e3}", "1500", 1.0),
        # Units.
        (r"\boxed{5 cm}", "5", 1.0),
        (r"\boxed{5\,\mathrm{cm}^2}", "5", 1.0),
        (r"\boxed{\$5}", "5", 1.0),
        (r"\boxed{90^\circ}", "90", 1.0),
        (r"\boxed{5}", r"5\text{ cm}", 1.0),
        (r"\boxed{6 cm}", "5", 0.0),
        # Sets, intervals, inequalities.
        (r"\boxed{x<3}", r"(-\infty,3)", 1.0),
        (r"\boxed{x \le 3}", r"(-\infty,3)", 0.0),
        (r"\boxed{1<x<3}", "(1,3)", 1.0),
        (r"\boxed{1 \le x < 3}", "[1,3)", 1.0),
        (r"\boxed{(1,3)}", "1<x<3", 1.0),
        (r"\boxed{x \in (1,3)}", "(1,3)", 1.0),
        (r"\boxed{x+y<3}", "(1,3)", 0.0),
        (r"\boxed{\varnothing}", r"\emptyset", 1.0),
        # Words.
        (r"\boxed{\text{Tuesday}}", "Tuesday", 1.0),
        (r"\boxed{Tuesday}", r"\text{tuesday}", 1.0),
        (r"\boxed{\text{no real solution}}", "no real solution", 1.0),
        (r"\boxed{\text{Monday}}", "Tuesday", 0.0),
        (r"\boxed{42}", "The answer is $42$", 1.0),
        (r"\boxed{7}", "**7**", 1.0),
        # Only LaTeX counts; math-verify's defaults say 1.
        ("The answer is 42.", "42", 0.0),
        ("#### 42", "42", 0.0),
    ],
)
def test_score_math_agrees_with_human_judgement(completion: str, answer: str, score: float) -> None:
    assert score_math(completion, answer) == score


@pytest.mark.parametrize(
    "answer", ["", " ", "The answer is 42", "Natalia sold 48/2 = 24 clips. #### 72", "#### 72", r"\frac{1}{", "$$"]
)
def test_check_reference_refuses_unmatchable_answer(answer: str) -> None:
    with pytest.raises(DataError, match="needs a reference answer that is LaTeX"):
        check_reference(answer)
    with pytest.raises(DataError, match="needs a reference answer that is LaTeX"):
        score_math(r"\boxed{42}", answer)


@pytest.mark.parametrize(
    "answer", ["42", r"50\%", r"0.\overline{3}", "$60$", r"\boxed{60}", "Tuesday", "x<3", r"x^2+1"]
)
def test_check_reference_accepts_matchable_answer(answer: str) -> None:
    check_reference(answer)
