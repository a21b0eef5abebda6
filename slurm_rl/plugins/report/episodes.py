"""Render samples of a run as text: prompt, replies, observations, rewards. Pure.

step 60, reward 1, answer '3'
  prompt       '333?'
  turn 1       '6'
  observation  '<'
  turn 2       '3'           reward 1

With tools, calls replace observations:

  turn 1       '[add(a=57,b=86)]'
  call         'add({"a": 57, "b": 86})' -> '143'
  turn 2       '143'
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_NAME_WIDTH = 12


def render_episodes(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one paragraph per row of samples.jsonl; all texts are quoted, so that white space is visible."""
    return "\n\n".join("\n".join(_lines(row)) for row in rows)


def transcribe(row: Mapping[str, Any]) -> str:
    """Return an episode for one cell of a table; for a single turn, its completion.

    >>> transcribe({"turns": [{"reply": "6", "observation": "<"}, {"reply": "3", "observation": ""}]})
    '6 [<] 3'
    """
    turns = row.get("turns")
    if not turns:
        return str(row.get("completion", ""))
    parts = ((str(turn.get("reply")), turn.get("observation")) for turn in turns)
    return " ".join(f"{reply} [{observation}]" if observation else reply for reply, observation in parts)


def _lines(row: Mapping[str, Any]) -> Iterator[str]:
    reward = "failed" if row.get("reward") is None else f"{row['reward']:g}"
    answer = f", answer {row['answer']!r}" if row.get("answer") else ""
    name = f", set {row['set']}" if row.get("set") else ""
    yield f"step {row.get('step')}{name}, reward {reward}{answer}"
    yield _line("prompt", row.get("prompt"))
    turns = row.get("turns") or [{"reply": row.get("completion"), "observation": "", "reward": None}]
    for number, turn in enumerate(turns, 1):
        earned = "" if turn.get("reward") is None else f"   reward {turn['reward']:g}"
        agent = f" {turn['agent']}" if turn.get("agent") else ""
        yield _line(f"turn {number}{agent}", turn.get("reply")) + earned
        for call in turn.get("calls") or ():
            yield _line("call", f"{call.get('name')}({call.get('arguments')})") + _came_of(call)
        if turn.get("observation") and not turn.get("calls"):
            yield _line("observation", turn["observation"])


def _came_of(call: Mapping[str, Any]) -> str:
    """Return the result or error of a tool call."""
    if call.get("error") is None:
        return f" -> {call.get('result')!r}"
    return f" -> {call['error']}: {call.get('result')!r}"


def _line(name: str, text: Any) -> str:
    return f"  {name:<{_NAME_WIDTH}} {text!r}"
