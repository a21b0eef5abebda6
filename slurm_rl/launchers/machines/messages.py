"""What the head and the other machines say to each other: the kinds, and what each must hold."""

from __future__ import annotations

from types import UnionType
from typing import Any

_FIELDS: dict[str, dict[str, type | UnionType]] = {
    # Both sides.
    "proof": {},
    "beat": {},
    # To the head.
    "hello": {"version": str, "rank": int | None, "name": str, "num_nodes": int | None, "config": dict},
    "ready": {"shares_run_dir": bool},
    "notice": {"signal": str},
    "record": {"attempt": int, "name": str, "content": dict},
    "event": {"row": dict},
    "exited": {"attempt": int, "status": int},
    # From the head.
    "welcome": {"rank": int, "num_nodes": int, "run_dir": str, "job_key": str, "word": str},
    "refused": {"cause": str, "is_final": bool},
    "start": {"attempt": int, "hosts": list},
    "file": {"attempt": int, "name": str, "content": dict},
    "signal": {"number": int},
    "end": {"state": str, "exit_code": int, "cause": str | None},
}


def find_fault(message: Any) -> str | None:
    """Why this is no message; None when it is one. Kinds and fields that are not known here are nobody's business.

    >>> find_fault({"kind": "notice", "signal": 15})
    "'notice' without a fitting 'signal'"
    """
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        return "nothing that has a kind"
    for name, kind in _FIELDS.get(message["kind"], {}).items():
        if name not in message or not isinstance(message[name], kind):
            return f"{message['kind']!r} without a fitting {name!r}"
    return None
