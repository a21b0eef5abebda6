"""Runs untrusted code, then answers calls of its functions. Nothing this side says is trusted."""

from __future__ import annotations

from typing import Any

from slurm_rl.rewards.sandbox.inside import wire


def serve(namespace: dict[str, Any], requests: int, replies: int) -> None:
    """Answer until the other side closes `requests`; both are file descriptors."""
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    while True:
        try:
            request = wire.receive(requests)
        except EOFError:
            return
        try:
            reply = _answer(request, namespace, objects, keep)
        except BaseException as error:
            reply = {"error": [type(error).__name__, str(error)[:500]]}
        wire.send(replies, reply)


def _answer(request: Any, namespace: dict[str, Any], objects: list[Any], keep: Any) -> dict[str, Any]:
    if request["do"] == "name":
        return {"value": wire.encode(namespace[request["name"]], keep)}
    target = objects[request["target"]]
    if request["do"] == "attribute":
        return {"value": wire.encode(getattr(target, request["name"]), keep)}
    positional = [wire.decode(data, objects.__getitem__) for data in request["args"]]
    named = {name: wire.decode(data, objects.__getitem__) for name, data in request["kwargs"].items()}
    value = target(*positional, **named)
    # The caller's lists and dicts may have been changed in place; it gets them back.
    return {"value": wire.encode(value, keep), "args": [wire.encode(item, keep) for item in positional]}
