"""Runs the checks of a row in another process than the code, and reports each verdict.

The code's functions are called through a pipe. What comes back is plain data or a `RemoteObject`, which is
equal to nothing but itself and neither true nor false: so no class of the code can pass for a result.
"""

from __future__ import annotations

import builtins
import json
import os
import select
from contextlib import suppress
from typing import Any

from slurm_rl.rewards.sandbox.inside import wire


class CodeGone(BaseException):
    """The process of the code ended, or is over the deadline of a test: no further check can pass."""


class Caller:
    """The code's end of the pipe, as seen from the checks."""

    def __init__(self, requests: int, replies: int, timeout_s: float) -> None:
        self._requests, self._replies, self._timeout_s = requests, replies, timeout_s
        self.trouble: BaseException | None = None
        """Kept apart, since a bare `except` of a check may catch what is raised."""

    def lookup(self, name: str) -> Any:
        """The code's global `name`. Raises NameError when it has none."""
        try:
            return self._value(self._ask({"do": "name", "name": name}))
        except Exception:
            raise NameError(f"the code does not define {name}") from None

    def attribute(self, target: int, name: str) -> Any:
        return self._value(self._ask({"do": "attribute", "target": target, "name": name}))

    def call(self, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            positional = [wire.encode(arg, _number) for arg in args]
            named = {name: wire.encode(arg, _number) for name, arg in kwargs.items()}
        except wire.NotPlain as error:
            self.trouble = error
            raise
        reply = self._ask({"do": "call", "target": target, "args": positional, "kwargs": named})
        value = self._value(reply)
        for arg, data in zip(args, reply.get("args") or (), strict=False):
            _update(arg, wire.decode(data, self._resolve))
        return value

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            wire.send(self._requests, request)
            if not select.select([self._replies], [], [], self._timeout_s)[0]:
                raise EOFError("no answer in time")
            reply = wire.receive(self._replies)
        except (OSError, EOFError) as error:
            self.trouble = CodeGone(str(error))
            raise self.trouble from None
        if not isinstance(reply, dict):
            raise ValueError("the code gave no answer")
        return reply

    def _value(self, reply: dict[str, Any]) -> Any:
        if "error" in reply:
            raise _rebuild(reply["error"])
        return wire.decode(reply.get("value"), self._resolve)

    def _resolve(self, number: int) -> RemoteObject:
        return RemoteObject(self, number)


class RemoteObject:
    """Something of the code that is not plain data: its functions, classes and their instances."""

    def __init__(self, caller: Caller, number: int) -> None:
        self._caller, self._number = caller, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._caller.call(self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._caller.attribute(self._number, name)

    def __bool__(self) -> bool:
        raise TypeError("the code returned an object where plain data was expected")


def run_checks(job: dict[str, Any], caller: Caller, verdicts: int) -> None:
    """Run `job["asserts"]` in order and write {"passed": bool} for each to `verdicts`, one line each.

    {"bad": text} in place of it says that the check itself cannot work, whatever the code is.
    """
    known: dict[str, Any] = {"__name__": "check"}
    for name in job["functions"]:
        with suppress(NameError, CodeGone):
            known[name] = caller.lookup(name)
    for check in job["asserts"]:
        passed = caller.trouble is None and _passes(f"{job['setup']}\n{check}", dict(known))
        if isinstance(caller.trouble, wire.NotPlain):
            _report(verdicts, {"bad": str(caller.trouble)})
            return
        _report(verdicts, {"passed": passed and caller.trouble is None})


def _passes(check: str, namespace: dict[str, Any]) -> bool:
    try:
        exec(compile(check, "<check>", "exec"), namespace)
    except BaseException:  # also what a check or the lost pipe raises past `except Exception`
        return False
    return True


def _report(fd: int, verdict: dict[str, Any]) -> None:
    os.write(fd, json.dumps(verdict).encode() + b"\n")


def _number(value: Any) -> int:
    if isinstance(value, RemoteObject):
        return value._number
    raise wire.NotPlain(f"an argument of the type {type(value).__name__} cannot be handed to the code")


def _update(arg: Any, after: Any) -> None:
    """Make a list, dict or set what it is now on the other side."""
    if type(arg) is not type(after):
        return
    if isinstance(arg, list | bytearray):
        arg[:] = after
    elif isinstance(arg, dict | set):
        arg.clear()
        arg.update(after)


def _rebuild(error: Any) -> Exception:
    """A builtin exception by its name; one of the code's own is a RuntimeError."""
    name, text = (str(part) for part in error)
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # such as UnicodeDecodeError, which wants more
            pass
    return RuntimeError(f"{name}: {text}")
