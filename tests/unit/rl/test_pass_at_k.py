import pytest

from slurm_rl.data.groups import Group, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.step_metrics import pass_metrics


def group(scores: list[float]) -> Group:
    item = RewardItem(completion="7", answer="7")
    results = [RewardResult(item=item, value=2 * score, parts={"arithmetic": score, "format": 1.0}) for score in scores]
    prompt = EncodedPrompt(index=0, token_ids=[1], text="3+4=", answer="7")
    return Group(prompt, [Trajectory([1], [-0.5], "7", False, 0)] * len(scores), results)


def test_pass_at_powers_of_two_over_all_prompts() -> None:
    found = pass_metrics([group([1.0, 0.0, 0.0, 0.0]), group([0.0] * 4)])
    assert found == {"accuracy/pass@2": pytest.approx(0.25), "accuracy/pass@4": pytest.approx(0.5)}


def test_pass_at_k_needs_several_samples() -> None:
    assert pass_metrics([group([1.0])]) == {}
