"""Sampling settings of a source apply to every turn, in lockstep, async and program episodes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.sources import each_source
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.rollout import agents
from slurm_rl.rollout.async_episodes import AsyncEpisodes
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.engine import GenerationRequest
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.multi_source import MultiSource, Source
from slurm_rl.rollout.sampling import Rollouts
from tests.unit.rl import test_agent_rollouts
from tests.unit.rl.episode_kit import LIMITS, SPEC, WORLDS, Engine, Letters, WaveEngine, prompts_of, sampler_of
from tests.unit.rollout.endpoint.kit import BOUNDS, make_renderer

WAYS = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "stop_token_ids": (3,)}


def play(rollouts: Rollouts, prompts: Sequence[EncodedPrompt]) -> None:
    """Play as the source `games`, in a run with other sampling settings."""
    mixture = MultiSource({"games": Source(rollouts, RolloutConfig(max_tokens=60, **WAYS))})
    mixture.sample([replace(one, source="games") for one in prompts], SPEC)


def check(specs: Sequence[SamplingSpec], num_turns: int) -> None:
    assert len(specs) >= num_turns
    for spec in map(asdict, specs):
        assert {name: spec[name] for name in WAYS} == WAYS


class Waves(WaveEngine):
    def __init__(self) -> None:
        super().__init__()
        self.specs: list[SamplingSpec] = []

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, seeds: Any = None) -> list[Group]:
        self.specs.append(spec)
        return super().start(prompts, spec, seeds)


def test_turns_use_sampling_parameters_of_source(tmp_path: Path) -> None:
    tokenizer: Any = Letters()
    waves, free = Waves(), Engine()
    with EnvironmentPool(EnvironmentConfig(name=f"{WORLDS}:Duel", timeout_s=60.0)) as pool:
        parts = pool, TurnRenderer(tokenizer, None), LIMITS, None
        sampler: Any = waves
        play(LockstepEpisodes(sampler, *parts), prompts_of(tmp_path))
        play(AsyncEpisodes(sampler_of(free), *parts), prompts_of(tmp_path))
    check(waves.specs, 2)
    check([request.spec for request in free.asked], 2 * len(prompts_of(tmp_path)) * SPEC.num_completions)


class Asked(test_agent_rollouts.Engine):
    def __init__(self) -> None:
        super().__init__()
        self.specs: list[SamplingSpec] = []

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        self.specs += [request.spec for request in requests]
        super().on_submit(client, requests)


def test_agent_requests_use_sampling_parameters_of_source() -> None:
    engine: Any = Asked()
    rollouts = agents.AgentRollouts(
        engine,
        make_renderer(chat=False),
        SamplingRule(0.5, 0.9, 4),
        BOUNDS,
        None,
        argv=[sys.executable, "-c", test_agent_rollouts.AGENT + test_agent_rollouts.GAME],
        at_once=2,
        rows=0,
        timeout_s=60.0,
    )
    play(rollouts, [EncodedPrompt(index=0, token_ids=[ord("?")], text="?", answer="c")])
    check(engine.specs, 3 * SPEC.num_completions)


def test_agent_may_request_only_temperature_of_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "?", "answer": "c"}) + "\n")
    words = ["+exp=demo", "data.train=''", f"+data.sources.games.train={tmp_path}/rows.jsonl"]
    words += [
        "+data.sources.games.env={agent_command: [python], turn_tokens: 2}",
        "+data.sources.games.temperature=0.5",
    ]
    config = load_config([*words, "+data.sources.games.top_p=0.9"])
    monkeypatch.setattr("slurm_rl.models.load_model.load_tokenizer", lambda *_, **__: Letters())
    monkeypatch.setattr(agents, "DialogueRenderer", lambda *_: make_renderer(chat=False))
    engine: Any = Asked()
    built = agents.build_agents(each_source(config)["games"], engine, None, "a model")
    rule = built.endpoint.rule
    assert (rule.temperature, rule.top_p) == (0.5, 0.9)
