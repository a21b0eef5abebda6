"""Several prompt sources combined: requests, seeds and the order of groups."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.sources import each_source
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.node.stop import Timer
from slurm_rl.rollout import agents
from slurm_rl.rollout.async_episodes import AsyncEpisodes
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.multi_source import MultiSource, Source
from slurm_rl.rollout.sampling import Rollouts
from tests.unit.rl import test_agent_rollouts
from tests.unit.rl.batch_kit import make_prompt
from tests.unit.rl.episode_kit import LIMITS, SPEC, Engine, Letters, pool_of, prompts_of, sampler_of
from tests.unit.rollout.endpoint.kit import BOUNDS, make_renderer


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
    prompts = [make_prompt(index, name) for index, name in enumerate(["sums", "games", "games", "sums", "games"])]
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
    prompts = [make_prompt(0, "sums"), make_prompt(1, "games")]
    mixture.start(prompts, SPEC)
    mixture.start(prompts, replace(SPEC, temperature=0.0, num_completions=1))
    drawn, greedy = map(asdict, games.specs)
    assert {name: drawn[name] for name in {**ways, **ends}} == {**ways, **ends} and drawn["num_completions"] == 3
    assert {name: greedy[name] for name in ends} == ends
    assert {name: greedy[name] for name in ways} == {name: asdict(SPEC)[name] for name in ways} | {"temperature": 0.0}
    assert [spec.temperature for spec in sums.specs] == [1.0, 0.0]


WAYS = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "stop_token_ids": (3,)}


def play(rollouts: Rollouts, prompts: Sequence[EncodedPrompt]) -> None:
    """Play as the source `games`, in a run with other sampling settings."""
    mixture = MultiSource({"games": Source(rollouts, RolloutConfig(max_tokens=60, **WAYS))})
    mixture.sample([replace(one, source="games") for one in prompts], SPEC)


def check(specs: Sequence[SamplingSpec], num_turns: int) -> None:
    assert len(specs) >= num_turns
    for spec in map(asdict, specs):
        assert {name: spec[name] for name in WAYS} == WAYS


def test_turns_use_sampling_parameters_of_source(tmp_path: Path) -> None:
    tokenizer: Any = Letters()
    engine = Engine()
    with pool_of("Duel") as pool:
        episodes = AsyncEpisodes(sampler_of(engine), pool, TurnRenderer(tokenizer, None), LIMITS, None)
        play(episodes, prompts_of(tmp_path))
    check([request.spec for request in engine.asked], 2 * len(prompts_of(tmp_path)) * SPEC.num_completions)


def test_agent_requests_use_sampling_parameters_of_source() -> None:
    engine: Any = test_agent_rollouts.Engine()
    parts = test_agent_rollouts.AGENT, test_agent_rollouts.ROW, test_agent_rollouts.GAME
    argv = [sys.executable, "-c", "".join(parts)]
    rule, limits = SamplingRule(0.5, 0.9, 4), {"argv": argv, "at_once": 2, "rows": 0, "timeout_s": 60.0}
    rollouts = agents.AgentRollouts(engine, make_renderer(chat=False), rule, BOUNDS, None, **limits)
    play(rollouts, [EncodedPrompt(index=0, token_ids=[ord("?")], text="?", answer="c")])
    check([request.spec for request in engine.asked], 3 * SPEC.num_completions)


def test_agent_may_request_only_temperature_of_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "?", "answer": "c"}) + "\n")
    words = ["+exp=demo", "data.train=''", f"+data.sources.games.train={tmp_path}/rows.jsonl"]
    words += ["+data.sources.games.env={agent_command: [python], turn_tokens: 2}"]
    config = load_config([*words, "+data.sources.games.temperature=0.5", "+data.sources.games.top_p=0.9"])
    monkeypatch.setattr("slurm_rl.models.load_model.load_tokenizer", lambda *_, **__: Letters())
    monkeypatch.setattr(agents, "DialogueRenderer", lambda *_: make_renderer(chat=False))
    engine: Any = test_agent_rollouts.Engine()
    built = agents.build_agents(each_source(config)["games"], engine, None, "a model")
    rule = built.endpoint.rule
    assert (rule.temperature, rule.top_p) == (0.5, 0.9)
