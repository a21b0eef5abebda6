"""Several agents with one model, and truncated histories: each conversation is its own path of tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.credit import build_train_sequences, compute_advantages
from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.groups import Branch, Group
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.rollout.async_episodes import AsyncEpisodes
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.workers.ray_driver import ActorLost
from tests.unit.rl.episode_kit import (
    SPEC,
    Engine,
    Letters,
    WaveEngine,
    journal_of,
    play_episodes,
    pool_of,
    prompts_of,
    sampler_of,
)

LIMITS = Limits(max_turns=20, turn_tokens=4, max_tokens=400, max_prompt_tokens=20)


def play(
    kind: str, sampler: Any, folder: Path, *, order: Any = LockstepEpisodes, limits: Limits = LIMITS
) -> list[Group]:
    with pool_of(kind) as pool:
        journal = journal_of(folder / "journal", pool) if order is AsyncEpisodes else None
        return play_episodes(order, sampler, pool, folder, limits=limits, journal=journal)


@pytest.fixture(scope="module")
def duels(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    return play("Duel", WaveEngine(), tmp_path_factory.mktemp("duels"))


def spell(token_ids: Any) -> str:
    return "".join(map(chr, token_ids))


def test_agent_reads_only_its_observations(duels: list[Group]) -> None:
    two = duels[0]  # each agent has two turns
    for completion in two.completions:
        white, black = completion.branches
        first, third, second, fourth = [turn.reply for turn in completion.turns]
        assert [turn.agent for turn in completion.turns] == ["", "", "black", "black"]
        assert white.context == two.prompt.token_ids
        assert spell(completion.token_ids[white.start : white.end]) == f"{first}it said {second}.{third}"
        assert spell(black.context) == f"it said {first}."
        assert spell(completion.token_ids[black.start : black.end]) == f"{second}it said {third}.{fourth}"


def test_replies_are_trained_once(duels: list[Group]) -> None:
    sequences = iter(build_plain_sequences(duels))
    for group in duels:
        for completion in group.completions:
            mine = [next(sequences) for _ in completion.branches]
            trained = "".join(spell(one.token_ids[one.trained]) for one in mine)
            assert trained == "".join(turn.reply for turn in completion.turns)
            assert len(trained) == completion.num_sampled
    assert next(sequences, None) is None


def test_agents_learn_from_own_rewards(duels: list[Group]) -> None:
    assert all(result.value == 0.0 for group in duels for result in group.results if result.failure is None)
    config = AlgorithmConfig(advantage="turn_rloo", group_size=3)
    advantages, _ = compute_advantages(duels, config, None, None)
    places = iter(advantages)
    is_taught = False
    for group in duels:
        wins = [next(turn.reward for turn in reversed(it.turns) if turn.agent == "") for it in group.completions]
        assert None not in wins
        for member, completion in enumerate(group.completions):
            others = [win or 0.0 for place, win in enumerate(wins) if place != member]
            mine = np.float32((wins[member] or 0.0) - sum(others) / len(others))
            found, lengths = next(places), [len(turn.reply) for turn in completion.turns]
            wanted = [mine if turn.agent == "" else -mine for turn in completion.turns]
            assert np.allclose(found, np.repeat(wanted, lengths))
            is_taught = is_taught or bool(mine)
    assert is_taught
    # Episode-level credit is zero: one agent's gain is the other's loss.
    whole = build_train_sequences(duels, AlgorithmConfig(group_size=3), None)
    assert not any(one.advantages is not None and one.advantages.any() for one in whole)


@pytest.mark.parametrize("kind", ["Duel", "Forgetful"])
def test_agents_killed_in_any_order_have_same_tokens(tmp_path: Path, kind: str) -> None:
    wanted = [group.completions for group in play(kind, WaveEngine(), tmp_path)]
    found, lives = None, 0
    while found is None:
        assert lives < 30, "it does not get on"
        try:
            found = play(kind, sampler_of(Engine(lives, lives=17)), tmp_path, order=AsyncEpisodes)
        except ActorLost:
            lives += 1
    assert lives > 2
    assert [group.completions for group in found] == wanted


def test_cut_dialogue_starts_branch_trained_on_once(tmp_path: Path) -> None:
    group = play("Forgetful", WaveEngine(), tmp_path)[3]  # four replies
    for completion in group.completions:
        a, b, c, d = [turn.reply for turn in completion.turns]
        first, second = completion.branches
        assert first.context == group.prompt.token_ids and spell(second.context) == "so far 2: "
        assert spell(completion.token_ids) == f"{a}go on: {b}{c}go on: {d}"
        assert second.start == len(f"{a}go on: {b}")
    sequences = build_plain_sequences([group])
    assert [one.num_trained for one in sequences] == [
        sum(len(turn.reply) for turn in completion.turns[part : part + 2])
        for completion in group.completions
        for part in (0, 2)
    ]


def test_truncated_dialogue_frees_tokens(tmp_path: Path) -> None:
    small = Limits(max_turns=20, turn_tokens=4, max_tokens=22, max_prompt_tokens=10)
    group = play("Forgetful", WaveEngine(), tmp_path, limits=small)[4]  # nine replies
    assert all(len(completion.turns) == 9 and not completion.truncated for completion in group.completions)
    assert all(len(completion.token_ids) > 22 for completion in group.completions)
    tight = Limits(max_turns=20, turn_tokens=4, max_tokens=22, max_prompt_tokens=-10)
    group = play("Forgetful", WaveEngine(), tmp_path, limits=tight)[4]
    assert all(len(completion.turns) == 2 and completion.truncated for completion in group.completions)


def test_reward_for_unknown_agent_is_failure(tmp_path: Path) -> None:
    for group in play("Stranger", WaveEngine(), tmp_path):
        assert {result.failure for result in group.results} == {"bad score"}
        assert all("'nobody'" in str(result.detail) for result in group.results)


class Cutting(Letters):
    """A template that removes earlier replies up to their last b, as other templates remove thinking."""

    chat_template = "written below"

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        parts = [it["content"].split("b")[-1] if it["role"] == "assistant" else it["content"] for it in messages]
        return "".join(f"<{it['role'][0]}>{part}" for it, part in zip(messages, parts, strict=True)) + "<a>"


def test_template_that_rewrites_replies_starts_new_sequence(tmp_path: Path) -> None:
    tokenizer: Any = Cutting()
    template = ChatTemplate(tokenizer)
    renderer = TurnRenderer(tokenizer, template, rerenders=True)
    prompts = []
    for prompt in prompts_of(tmp_path):
        messages = [{"role": "user", "content": "count"}]
        text = template.render(messages, "a row", add_generation_prompt=True)
        prompts.append(replace(prompt, messages=messages, token_ids=tokenizer(text)["input_ids"]))
    with pool_of("Count") as pool:
        sampler: Any = WaveEngine()
        limits = replace(LIMITS, max_tokens=200)
        groups = LockstepEpisodes(sampler, pool, renderer, limits, None).sample(prompts, SPEC)
    counts = set()
    for group in groups:
        assert group.prompt.messages is not None
        for completion in group.completions:
            counts.add((completion.num_sequences > 1, any("b" in turn.reply for turn in completion.turns[:-1])))
            dialogue = list(group.prompt.messages)
            whole = [Branch(group.prompt.token_ids, 0, len(completion.token_ids))]
            for turn in completion.turns:
                at = next(one for one in completion.branches or whole if one.start <= turn.start < one.end)
                read = [*at.context, *completion.token_ids[at.start : turn.start]]
                assert spell(read) == template.render(dialogue, "it", add_generation_prompt=True)
                dialogue.append({"role": "assistant", "content": turn.reply})
                dialogue.append({"role": "user", "content": turn.observation})
            assert spell(completion.token_ids[place] for place in completion.sampled_places()) == "".join(
                turn.reply for turn in completion.turns
            )
    assert counts == {(True, True), (False, False)}, "split where it was rewritten, and nowhere else"
