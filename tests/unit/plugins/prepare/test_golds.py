from slurm_rl.rewards.check_references import find_unscorable


def test_find_unscorable_tries_answers_once_and_names_bad_ones() -> None:
    found = find_unscorable(["$1$", "#### 72", "$50\\%$", "$\\boxed{\\frac{1}{2}}$", "#### 72", "$1$"])
    assert list(found) == ["#### 72"]
    assert "LaTeX" in found["#### 72"]
    assert find_unscorable(["#### 72"], total_s=-1.0) == {}, "it stops after its time"


def test_find_unscorable_survives_hanging_and_killing_answers() -> None:
    answers = ["a", "hangs in C", "b", "dies", "raises", "c"]
    assert find_unscorable(answers, "tests.unit.plugins.prepare.odd_judge:judge_oddly", timeout_s=1.0) == {
        "hangs in C": "no verdict within 1 s",
        "dies": "the verifier died of it",
        "raises": "RecursionError: deep",
    }
