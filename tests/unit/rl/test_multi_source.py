"""Several prompt sources combined: requests, seeds and the order of groups."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.multi_source import MultiSource, Source
from slurm_rl.rollout.sampling import Rollouts
from slurm_rl.trainers.grpo.step_metrics import accuracy, pass_metrics, sampling_metrics, source_accuracy

SPEC = SamplingSpec(num_completions=2, max_tokens=12, temperature=1.0, top_p=1.0, seed=7)


def prompt(source: str, index: int) -> EncodedPrompt:
    return EncodedPrompt(index=index, token_ids=[index], text=f"{source}{index}", answer="", source=source)


class Said(Rollouts):
    """Rollouts that record their requests."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.specs = name, log, list[SamplingSpec]()

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec) -> Any:
        self.log.append(f"start {self.name}")
        self.specs.append(spec)
        return prompts

    def finish(self, pending: Any, timer: Timer, within_s: float | None = None) -> list[Group]:
        self.log.append(f"finish {self.name}")
        return [Group(one, []) for one in pending]


def test_multi_source_returns_groups_in_order_of_prompts() -> None:
    log: list[str] = []
    games, sums = Said("games", log), Said("sums", log)
    parts = {"games": Source(games, RolloutConfig(max_tokens=7)), "sums": Source(sums, RolloutConfig(max_tokens=3))}
    mixture = MultiSource(parts)
    prompts = [prompt(name, index) for index, name in enumerate(["sums", "games", "games", "sums", "games"])]
    groups = mixture.finish(mixture.start(prompts, SPEC), Timer())
    assert [group.prompt for group in groups] == prompts
    # All sources start before the first wait.
    assert log == ["start games", "start sums", "finish games", "finish sums"]
    assert [spec.max_tokens for spec in (*games.specs, *sums.specs)] == [7, 3]
    seeds = [spec.seed for spec in (*games.specs, *sums.specs)]
    assert len({*seeds, SPEC.seed}) == 3
    mixture.start(prompts[:1], SPEC)
    assert log[-1] == "start sums" and sums.specs[-1].seed == seeds[1]


def test_sources_use_own_sampling_parameters() -> None:
    log: list[str] = []
    games, sums = Said("games", log), Said("sums", log)
    ways = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}
    ends = {"max_tokens": 7, "stop": ("x",), "stop_token_ids": (3,)}
    plain = RolloutConfig(max_tokens=3)
    mixture = MultiSource({"games": Source(games, RolloutConfig(**ways, **ends)), "sums": Source(sums, plain)})
    prompts = [prompt("sums", 0), prompt("games", 1)]
    mixture.start(prompts, SPEC)
    mixture.start(prompts, replace(SPEC, temperature=0.0, num_completions=1))
    drawn, greedy = map(asdict, games.specs)
    assert {name: drawn[name] for name in {**ways, **ends}} == {**ways, **ends} and drawn["num_completions"] == 2
    assert {name: greedy[name] for name in ends} == ends
    assert {name: greedy[name] for name in ways} == {name: asdict(SPEC)[name] for name in ways} | {"temperature": 0.0}
    assert [spec.temperature for spec in sums.specs] == [1.0, 0.0]


def scored(source: str, values: Sequence[float | None], *, judged: bool) -> Group:
    item = RewardItem(completion="", answer="")
    results = [
        RewardResult(item=item, value=value, failure=None if value is not None else "hang")
        if value is None or not judged
        else RewardResult(item=item, value=value / 2, parts={"arithmetic": value})
        for value in values
    ]
    return Group(prompt(source, 0), [Trajectory([1, 2], [-1.0, -1.0], "", False, 0)] * len(values), results)


def test_metrics_are_reported_per_source() -> None:
    groups = [scored("games", [1.0, 0.0], judged=False), scored("sums", [1.0, 1.0], judged=True)]
    groups.append(scored("sums", [0.0, None], judged=True))
    found = sampling_metrics(groups)
    assert found["source/games/reward"] == 0.5 and found["source/games/prompts"] == 1
    assert found["source/sums/reward"] == pytest.approx(1 / 3) and found["source/sums/failed"] == 1
    assert found["source/sums/groups_with_signal"] == 0.0 and found["source/games/groups_with_signal"] == 1.0
    # Games have no answer verifier: their reward counts as accuracy, next to the verifier's scores for sums.
    assert accuracy(groups) == 3 / 6
    assert source_accuracy(groups, "sampled") == {"source/games/sampled": 0.5, "source/sums/sampled": 0.5}
    assert pass_metrics(groups) == {"accuracy/pass@2": pytest.approx(2 / 3)}


def test_single_source_has_no_source_metrics() -> None:
    groups = [scored("", [1.0, 0.0], judged=False)]
    assert not [key for key in sampling_metrics(groups) if key.startswith("source/")]
    assert source_accuracy(groups, "sampled") == {}
