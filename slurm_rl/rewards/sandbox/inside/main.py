"""Entry point of the sandboxed interpreter: take the job, confine, report, run.

script   the code is a program: it reads stdin and writes stdout
serve    the code defines functions, which the checks call
check    the checks of the row, which only this mode gets
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import json
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slurm_rl.rewards.sandbox.inside import wire
from slurm_rl.rewards.sandbox.inside.check import Caller, run_checks
from slurm_rl.rewards.sandbox.inside.confine import confine

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    **{f.__name__: f for f in (getattr, setattr, delattr, isinstance, len, iter, next, bool, repr, hash, format)},
    "str": str,
    "reversed": reversed,
    "and": operator.and_,
    "or": operator.or_,
    **{name: getattr(operator, name) for name in operator.__all__ if name not in ("call",)},
}
"""Operations of the checks on objects of the code."""


def serve(namespace: dict[str, Any], requests: int, replies: int) -> None:
    """Answer until the other side closes `requests`; both are file descriptors."""
    objects: list[Any] = []
    numbers: dict[int, int] = {}

    def refer(value: Any, _: wire.Encoder) -> list[Any]:
        number = numbers.setdefault(id(value), len(objects))
        if number == len(objects):
            objects.append(value)
        return ["o", number]

    operations = {**OPERATIONS, "global": namespace.__getitem__}
    while True:
        try:
            request = wire.receive(requests)
        except EOFError:
            return
        try:
            reply = wire.pack(_answer(request, operations, objects, refer))
        except BaseException as error:
            reply = wire.pack(_describe(error))
        wire.send(replies, reply)


def _answer(request: Any, operations: Any, objects: list[Any], refer: Any) -> dict[str, Any]:
    operation, args, kwargs = request
    decoder = wire.Decoder(objects.__getitem__)
    positional = [decoder.decode(data) for data in args]
    named = {name: decoder.decode(data) for name, data in kwargs.items()}
    value = operations[operation](*positional, **named)
    encoder = wire.Encoder(refer, decoder.objects)
    return {
        "value": encoder.encode(value),
        "objects": [encoder.encode_content(container) for container in decoder.objects],
    }


def _describe(error: BaseException) -> dict[str, Any]:
    """Return its class, or the next one below it that is Python's own, with its arguments."""
    name = next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins")
    plain = [arg if isinstance(arg, (int, float)) else str(arg)[:500] for arg in error.args]
    return {"error": [name, wire.Encoder(lambda value, _: ["s", str(value)]).encode_all(plain)]}


def main() -> None:
    with open(int(sys.argv[1]), encoding="utf-8") as file:  # noqa: PTH123  a descriptor
        job: dict[str, Any] = json.load(file)
    sys.argv = ["solution.py"]
    told = confine(job["limits"], job["parent"])
    os.write(job["status"], json.dumps(told).encode() + b"\n")
    os.close(job["status"])
    if job["mode"] == "check":
        caller = Caller(job["requests"], job["replies"], job["timeout_s"])
        run_checks(job, caller, job["verdicts"])
    elif job["mode"] == "serve":
        serve(_run(job["source"], "solution"), job["requests"], job["replies"])
    else:
        _run(job["source"], "__main__")


def _run(source: str, name: str) -> dict[str, Any]:
    """Execute the code as the module `name` and return its globals."""
    builtins.exit = builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D")  # of `site`, which did not run
    module = ModuleType(name)
    module.__file__ = "solution.py"
    sys.modules[name] = module
    # Not with the __future__ imports of this file.
    exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__
