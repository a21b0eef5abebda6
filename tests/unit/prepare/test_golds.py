from __future__ import annotations

from slurm_rl.prepare.check_answers import find_unscorable
from tests.unit.prepare.odd_judge import judge_oddly


def test_each_answer_is_tried_once_and_the_bad_ones_are_named() -> None:
    said: list[str] = []
    found = find_unscorable(["$1$", "$50\\%$", "$\\boxed{\\frac{1}{2}}$", "$50\\%$", "$1$"], said.append)
    assert list(found) == ["$50\\%$"]
    assert "LaTeX" in found["$50\\%$"]
    assert said == ["checking 3 different reference answers"]


def test_an_answer_that_hangs_or_kills_the_verifier_costs_itself_alone() -> None:
    answers = ["a", "hangs in C", "b", "dies", "raises", "differs", "c"]
    assert find_unscorable(answers, lambda _: None, timeout_s=1.0, judge=judge_oddly) == {
        "hangs in C": "no verdict within 1 s",
        "dies": "the verifier died of it",
        "raises": "RecursionError: deep",
        "differs": "it does not equal itself",
    }
