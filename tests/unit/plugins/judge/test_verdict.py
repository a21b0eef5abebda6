"""Parsers of verdicts: a reply has exactly one verdict in range, or none."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.config.judge import JudgeConfig
from slurm_rl.plugins.judge.verdict import parse_verdict, render_prompt
from slurm_rl.rewards.results import RewardItem


def parse(reply: str, **keys: Any) -> float | None:
    try:
        return parse_verdict(JudgeConfig(**keys), reply)[0]
    except ValueError:
        return None


NO_NUMBERS = ["7/10", "1,000", "-3", "−3", "3-4", "11", "1e1", "v2", "1.2.3", "NaN", "", "7\nI am sure."]


def test_number_is_only_one_of_last_line() -> None:
    for reply, reward in {"Because 2 of 3.\nScore: 7\n\n": 0.7, "**7.5**": 0.75, "7.": 0.7, "+3": 0.3}.items():
        assert parse(reply, range=(0, 10)) == pytest.approx(reward)
    assert {parse(reply, range=(0, 10)) for reply in NO_NUMBERS} == {None}


def test_choice_is_one_whole_word() -> None:
    replies = {"GOOD first\nVerdict: **BAD**.": 0.0, "NOT GOOD": 0.25, "GOOD GOOD": 1.0}
    replies |= dict.fromkeys(["GOOD, not NOT GOOD", "GOOD or BAD", "GOODNESS", "good"])
    choices = {"GOOD": 1.0, "BAD": 0.0, "NOT GOOD": 0.25}
    assert {reply: parse(reply, parser="choice", choices=choices) for reply in replies} == replies


def test_json_is_last_whole_object() -> None:
    nested = '{"score": 0} no: ```json\n{"why": "{", "score": 1, "inner": {"score": 0}}\n```'
    assert {parse(reply, parser="json") for reply in (nested, '[{"score": 1}')} == {1.0}
    bad = [f'{{"score": {value}}}' for value in ("true", "NaN", '"1"', "2", "[1]")]
    assert {parse(reply, parser="json") for reply in (*bad, '{"mark": 1}', "{" * 100_000, '{"a":' * 100_000)} == {None}


def test_other_numbers_of_json_are_kept() -> None:
    reply = '{"score": 0.5, "style": 2, "ok": true, "why": "x", "bad name\\n": 1}'
    assert parse_verdict(JudgeConfig(parser="json"), reply) == (0.5, {"style": 2.0})


SETTINGS: list[dict[str, Any]] = [
    {"parser": "number", "range": (-5, 10)},
    {"parser": "choice", "choices": {"A": 1.0, "B": 0.5}},
    {"parser": "json"},
]


@given(st.text() | st.text(alphabet='0123456789.-+/ AB{}":,\nscore'), st.sampled_from(SETTINGS))
def test_any_reply_has_verdict_in_range_or_none(reply: str, keys: dict[str, Any]) -> None:
    found = parse(reply, **keys)
    assert found is None or (math.isfinite(found) and 0 <= found <= 1)


@given(st.floats(0, 1), st.text(), st.text())
def test_written_verdict_is_read_again(value: float, before: str, why: str) -> None:
    number = f"{value:.6f}"
    assert parse(f"{before}\nScore: {number}") == float(number)
    # A brace in the text before may open another object.
    wrapped = before.replace("{", "(") + json.dumps({"why": why, "score": float(number)})
    assert parse(wrapped, parser="json") == float(number)


def test_chat_is_shown_without_template_tokens() -> None:
    chat: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4?"}]
    item = RewardItem(completion="7", answer="7", prompt="<|im_start|>user\n3+4?", messages=chat)
    assert render_prompt("{question}={completion}", item) == "3+4?=7"
    image = {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "And 4+4?"}]}
    longer = RewardItem(completion="8", answer="8", messages=[*chat, {"role": "assistant", "content": "7"}, image])
    assert render_prompt("{question}{completion}", longer) == "user: 3+4?\n\nassistant: 7\n\nuser: And 4+4?8"
