"""Run the checks of a row in another process than the code, and report each verdict.

The code's functions are called through a pipe. The results are plain data or a `RemoteObject`. Its operators run in the
code, with two limits, so that no class of the code can pass for a result: an object of the code is never equal to plain
data nor ordered with it, and an operator with plain data (`vector * 3`) must give an object again.
"""

from __future__ import annotations

import builtins
import json
import os
import select
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from slurm_rl.rewards.sandbox.inside import wire


class CodeGone(BaseException):
    """The process of the code ended, or is over the deadline of a test: no further check can pass."""


class Caller:
    """The code's end of the pipe, as seen from the checks."""

    def __init__(self, requests: int, replies: int, timeout_s: float) -> None:
        self._requests, self._replies, self._timeout_s = requests, replies, timeout_s
        self._objects: dict[int, RemoteObject] = {}
        self.trouble: BaseException | None = None
        """Kept apart, since a bare `except` of a check may catch what is raised."""

    def lookup(self, name: str) -> Any:
        """Return the code's global `name`. Raises NameError when it has none."""
        try:
            return self.run("global", name)
        except Exception:
            raise NameError(f"the code does not define {name}") from None

    def run(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        """Run an operation of `main.OPERATIONS` on these arguments in the process of the code."""
        encoder = wire.Encoder(_refer)
        try:
            request = [operation, encoder.encode_all(args), {key: encoder.encode(one) for key, one in kwargs.items()}]
        except wire.NotPlain as error:
            self.trouble = error
            raise
        reply = self._ask(request)
        decoder = wire.Decoder(self._resolve, encoder.objects)
        match reply:
            case {"error": [str(name), list(items)]}:
                raise _rebuild(name, [decoder.decode(item) for item in items])
            case {"value": data, "objects": list(contents)}:
                value = decoder.decode(data)
                # The code may have changed the containers of the arguments in place.
                for container, content in zip(encoder.objects, contents, strict=True):
                    decoder.fill(container, content)
                return value
        raise ValueError("the code returned no answer")

    def _ask(self, request: list[Any]) -> Any:
        try:
            wire.send(self._requests, wire.pack(request))
            if not select.select([self._replies], [], [], self._timeout_s)[0]:
                raise EOFError("no answer in time")
            return wire.receive(self._replies)
        except (OSError, EOFError) as error:
            self.trouble = CodeGone(str(error))
            raise self.trouble from None

    def _resolve(self, number: int) -> RemoteObject:
        return self._objects.setdefault(number, RemoteObject(self, number))


class RemoteObject:
    """An object of the code that is not plain data: a function, class, instance or iterator."""

    __slots__ = ("_remote_caller", "_remote_number")
    _remote_caller: Caller
    _remote_number: int

    def __init__(self, caller: Caller, number: int) -> None:
        object.__setattr__(self, "_remote_caller", caller)
        object.__setattr__(self, "_remote_number", number)

    def __eq__(self, other: object) -> Any:
        return _run("eq", self, other) if isinstance(other, RemoteObject) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return _run("ne", self, other) if isinstance(other, RemoteObject) else NotImplemented

    def __instancecheck__(self, instance: Any) -> Any:
        return isinstance(instance, RemoteObject) and _run("isinstance", instance, self)

    def __hash__(self) -> int:
        return int(_run("hash", self))


def _run(operation: str, remote: RemoteObject, *args: Any, **kwargs: Any) -> Any:
    return remote._remote_caller.run(operation, remote, *args, **kwargs)


def _forward(operation: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: _run(operation, self, *args, **kwargs)


def _compare(operation: str) -> Callable[[RemoteObject, Any], Any]:
    return lambda self, other: _run(operation, self, other) if isinstance(other, RemoteObject) else NotImplemented


def _operate(operation: str, *, is_swapped: bool = False) -> Callable[[RemoteObject, Any], Any]:
    def operate(self: RemoteObject, other: Any) -> Any:
        left, right = (other, self) if is_swapped else (self, other)
        value = self._remote_caller.run(operation, left, right)
        if isinstance(other, RemoteObject) or isinstance(value, RemoteObject):
            return value
        raise TypeError(f"{operation} of an object of the code and plain data must be an object")

    return operate


for _name in ("call", "getattr", "setattr", "delattr", "getitem", "setitem", "delitem"):
    setattr(RemoteObject, f"__{_name}__", _forward(_name))
for _name in ("len", "iter", "next", "reversed", "bool", "str", "repr", "format", "neg", "pos", "invert"):
    setattr(RemoteObject, f"__{_name}__", _forward(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(RemoteObject, f"__{_name}__", _compare(_name))
for _name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(RemoteObject, f"__{_name}__", _operate(_name))
    setattr(RemoteObject, f"__r{_name}__", _operate(_name, is_swapped=True))
    setattr(RemoteObject, f"__i{_name}__", _operate(f"i{_name}"))


def run_checks(job: dict[str, Any], caller: Caller, verdicts: int) -> None:
    """Run `job["asserts"]` in order and write a line {"passed": bool} for each to `verdicts`.

    A line {"bad": text} reports a check that cannot work with any code.
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
        exec(compile(check, "<check>", "exec", dont_inherit=True), namespace)
    except BaseException:  # also of a check or the lost pipe
        return False
    return True


def _report(fd: int, verdict: dict[str, Any]) -> None:
    os.write(fd, json.dumps(verdict).encode() + b"\n")


def _refer(value: Any, encoder: wire.Encoder) -> list[Any]:
    if isinstance(value, RemoteObject):
        return ["o", value._remote_number]
    if isinstance(value, Iterator):
        return ["y", encoder.encode_all(value)]
    raise wire.NotPlain(f"an argument of the type {type(value).__name__} cannot be handed to the code")


def _rebuild(name: str, args: list[Any]) -> Exception:
    """Return a builtin exception by its name; others are an Exception."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # such as of UnicodeDecodeError, which wants more
            return kind(*args)
    return Exception(*args)
