"""Record the text that SFT trains for every chat template in trl and eight conversations.

    python -m tests.trained_text    writes tests/golden/trained-text.txt

Each line has the text of all trained turns, joined by " + ", followed by the templates that train it.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.encode_answers import encode_answer
from slurm_rl.errors import DataError
from tests.templates import ADD, FOLDER, build_tokenizer

FILE = Path(__file__).parent / "golden" / "trained-text.txt"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TAKES_PARTS = ("idefics3", "llava_next", "smolvlm")
"""Families with templates that only accept contents as lists of parts."""


def say(role: str, content: str | None, **keys: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **keys}


def think(content: str, thinking: str) -> dict[str, Any]:
    """Return a turn with thinking in the keys of all families."""
    return say("assistant", content, reasoning_content=thinking, thinking=thinking, reasoning=thinking)


HI, FOUR, ASK = say("assistant", "Hi"), say("assistant", "4"), say("user", "3+1?")
CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "why": "so"}'}}
CALLS = say("assistant", None, tool_calls=[CALL])
RESULT = say("tool", "4", name="add", tool_call_id="call00000")
CONVERSATIONS: Final[Mapping[str, Sequence[dict[str, Any]]]] = {
    "system": [say("system", "Hi"), ASK, FOUR],
    "several turns": [say("user", "Hi"), HI, ASK, FOUR],
    "assistant first": [HI, ASK, FOUR],
    "cut after a question": [say("user", "Hi"), HI, ASK],
    "thinking": [say("user", "Hi"), think("Hi", "Hi?"), ASK, think("4", "So 4.")],
    "thinking in the content": [ASK, say("assistant", "<think>\nSo 4.\n</think>\n\n4")],
    "tools": [say("system", "Hi"), ASK, CALLS, RESULT, FOUR, say("user", "Hi"), HI],
    "cut after a call": [ASK, CALLS],
}


def fit(messages: Sequence[dict[str, Any]], family: str) -> list[dict[str, Any]]:
    """Return the messages with contents in the family's format."""
    if not family.startswith(TAKES_PARTS):
        return list(messages)
    return [{**one, "content": [{"type": "text", "text": one["content"] or ""}]} for one in messages]


@cache
def train(family: str, name: str, *, has_special_tags: bool = False) -> list[str]:
    """Return the text of each trained turn, or one line with the reason of a refusal."""
    tokenizer = build_tokenizer(family, has_special_tags=has_special_tags)
    try:
        encoded = encode_answer(
            [],
            fit(CONVERSATIONS[name], family),
            tokenizer,
            template=ChatTemplate(tokenizer),
            name="row",
            tools=[ADD] if name == "tools" else [],
        )
    except DataError as error:
        return [f"refused: {error.rule.removeprefix('row: ')}; got {str(error.seen).partition(', and the special')[0]}"]
    return split_turns(encoded.token_ids.tolist(), encoded.answered.tolist(), tokenizer)


def split_turns(token_ids: Sequence[int], places: Sequence[int], tokenizer: Any) -> list[str]:
    """Return the text of each run of consecutive positions."""
    turns: list[list[int]] = []
    for place in places:
        if place - 1 not in places:
            turns.append([])
        turns[-1].append(token_ids[place])
    return [tokenizer.decode(turn) for turn in turns]


def write_record() -> Iterator[str]:
    for name in CONVERSATIONS:
        yield f"== {name} =="
        families: dict[str, list[str]] = {}
        for family in FAMILIES:
            turns = train(family, name)
            line = " + ".join(turn.replace("\n", "\\n") for turn in turns)
            families.setdefault(line, []).append(family)
        for line, trained_by in families.items():
            yield line
            yield from textwrap.wrap(" ".join(trained_by), 116, initial_indent="    ", subsequent_indent="    ")
        yield ""


if __name__ == "__main__":
    FILE.write_text("\n".join(write_record()), encoding="utf-8")
