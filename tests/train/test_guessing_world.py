"""The game of benchmarks/environments_vs_trl.py is the same on both sides, by TRL's own reading of its replies."""

from __future__ import annotations

from typing import Any

import pytest
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from benchmarks.environments_vs_trl import TINY
from benchmarks.guessing_world import RESPONSE, TEMPLATE, TURNS, OurGuess, TrlGuess
from slurm_rl.envs.environment import Reply, Row
from slurm_rl.models.tiny import build_character_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = build_character_tokenizer(TINY)
    made.chat_template, made.response_template = TEMPLATE, RESPONSE
    return made


def play_trl(tokenizer: Any, replies: str, secret: str) -> tuple[str, float]:
    """All tokens that the policy has read and said, as text, and the reward; as TRL's loop goes."""
    world = TrlGuess()
    world.reset(prompt="333", answer=secret)
    asked: Any = [{"role": "user", "content": "333"}]
    words = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    ids = tokenizer.apply_chat_template(asked, tools=[world.guess], **words)
    for turn, reply in enumerate(replies):
        said = tokenizer(reply, add_special_tokens=False)["input_ids"]
        found = parse_response(tokenizer, said, prefix=ids, tools=[world.guess])
        ids = [*ids, *said]
        if not found.get("tool_calls"):
            break
        [call] = found["tool_calls"]
        told = world.guess(**call["function"]["arguments"])
        if turn < TURNS - 1:  # TRL makes the call of a last reply, too, and drops what is said to it
            dialogue = [asked[0], {"role": "assistant", "content": "", "tool_calls": found["tool_calls"]}]
            before = tokenizer.apply_chat_template(dialogue, **{**words, "add_generation_prompt": False})
            after = tokenizer.apply_chat_template([*dialogue, {"role": "tool", "content": told}], **words)
            ids += after[len(before) :]
    return tokenizer.decode(ids), world.get_reward()


def play_ours(replies: str, secret: str) -> tuple[str, float]:
    world, text = OurGuess(), "333:"
    world.reset(Row(index=0, prompt=text, answer=secret), 0)
    for reply in replies:
        step = world.step(Reply(text=reply))
        text += reply + ("" if step.done else str(step.observation))
        if step.done:
            assert step.reward is not None
            return text, step.reward
    raise AssertionError("no end")


def test_trl_takes_the_template_for_one_with_tools(tokenizer: Any) -> None:
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)


@pytest.mark.parametrize("replies", ["4637", "6666", "1=", "9", "88<", "8765", "62:4"])
def test_the_same_replies_make_the_same_tokens_and_the_same_reward(tokenizer: Any, replies: str) -> None:
    assert play_trl(tokenizer, replies, "6") == play_ours(replies, "6")
