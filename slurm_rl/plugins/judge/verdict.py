"""Prompts and verdicts of a judge. Pure."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_rl.config.judge import FIELDS, JudgeConfig
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.values import keep_numbers, read_number, show

_NUMBER = re.compile(r"(?<![\w.−–])[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?![\w]|\.\d)")
_MOST_BRACES = 1000


def render_prompt(template: str, item: RewardItem) -> str:
    """Fill in a template in one pass, so that braces in a completion stay text.

    >>> render_prompt("{question} -> {completion}", RewardItem(prompt="1+1?", completion="{reference}", answer="2"))
    '1+1? -> {reference}'
    """
    values = {"question": _question(item), "completion": item.completion, "reference": item.answer}
    return re.sub("|".join(rf"\{{{name}\}}" for name in FIELDS), lambda found: values[found[0][1:-1]], template)


def _question(item: RewardItem) -> str:
    """Return the prompt as text; of a chat with one message, its text without the template's tokens."""
    if item.messages is None:
        return item.prompt
    parts = [(message["role"], _text(message["content"])) for message in item.messages if message["role"] != "system"]
    return parts[0][1] if len(parts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in parts)


def _text(content: Any) -> str:
    """Return the text of a message, without its images."""
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")
    return str(content or "")


@dataclass(frozen=True)
class Verdict:
    """Content of one reply."""

    reward: float | None
    """None: the reply has no verdict."""
    others: dict[str, float]
    """Other numbers of the reply."""
    cost: float
    fault: str = ""
    """Reason for the missing verdict."""


def read_verdict(config: JudgeConfig, reply: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a reply: `text`, `end` (finish reason), and numbers of tokens `input` and `output`."""
    cost = (reply["input"] * config.price_input + reply["output"] * config.price_output) / 1e6
    text, end = reply["text"], reply["end"]
    if text is None or end == "length":
        words = "was cut at max_tokens" if end == "length" else f"is empty ({end})"
        return Verdict(None, {}, cost, f"the reply must have a verdict; it {words}")
    try:
        return Verdict(*parse_verdict(config, text), cost)
    except ValueError as error:
        return Verdict(None, {}, cost, str(error))


def parse_verdict(config: JudgeConfig, reply: str) -> tuple[float, dict[str, float]]:
    """Return the reward in a judge's reply, and other numbers that it contains.

    Raises:
        ValueError: the reply has no verdict in the configured format, or several.
    """
    if config.parser == "json":
        tree = _last_object(reply)
        if config.json_key not in tree:
            raise ValueError(f"the JSON of the reply must have the key {config.json_key!r}; got {show(tree)}")
        others = {name: value for name, value in tree.items() if name != config.json_key}
        return _scale(config, tree[config.json_key]), keep_numbers(_without_booleans(others))
    line = next((line for line in reversed(reply.splitlines()) if line.strip()), "")
    if config.parser == "number":
        found = _NUMBER.findall(line)
        if len(found) != 1:
            raise ValueError(f"the last line of the reply must contain one number; got {show(line)}")
        return _scale(config, float(found[0])), {}
    # Longest first: "NOT GOOD" is one choice, though it contains another.
    choices = "|".join(map(re.escape, sorted(config.choices, key=len, reverse=True)))
    words = set(re.findall(rf"(?<!\w)(?:{choices})(?!\w)", line))
    if len(words) != 1:
        listed = ", ".join(config.choices)
        raise ValueError(f"the last line of the reply must contain one of {listed}; got {show(line)}")
    return config.choices[words.pop()], {}


def _without_booleans(tree: dict[str, Any]) -> dict[object, object]:
    return {name: value for name, value in tree.items() if not isinstance(value, bool)}


def _scale(config: JudgeConfig, value: object) -> float:
    low, high = config.range
    if isinstance(value, bool):
        raise ValueError(f"the verdict must be a number; got {value}")
    number = read_number(value)
    if not low <= number <= high:
        raise ValueError(f"the verdict must be between {low:g} and {high:g} (reward.judge.range); got {number:g}")
    return (number - low) / (high - low)


def _last_object(reply: str) -> dict[str, Any]:
    """Return the last JSON object of a text that is not part of another one."""
    decoder, at, found, tried = json.JSONDecoder(parse_constant=_refuse), 0, None, 0
    while (begin := reply.find("{", at)) >= 0 and tried < _MOST_BRACES:
        tried += 1
        try:
            found, at = decoder.raw_decode(reply, begin)
        except (ValueError, RecursionError):
            at = begin + 1
    if not isinstance(found, dict):
        raise ValueError(f"the reply must contain a JSON object; got {show(reply[-200:])}")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def agreement(rewards: Sequence[float]) -> float:
    """Return the share of votes for the most frequent verdict.

    >>> agreement([1.0, 1.0, 0.0, 1.0])
    0.75
    """
    return Counter(rewards).most_common(1)[0][1] / len(rewards)
