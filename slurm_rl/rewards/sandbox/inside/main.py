"""Where the sandboxed interpreter starts: take the job, confine, say so, run it.

script   the code is a program: it reads stdin and writes stdout
serve    the code defines functions, which the checks call
check    the checks of the row; the only mode that is told them
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import json
import os
import sys
from types import ModuleType
from typing import Any

from slurm_rl.rewards.sandbox.inside import wire
from slurm_rl.rewards.sandbox.inside.check import Caller, run_checks
from slurm_rl.rewards.sandbox.inside.confine import confine


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


def main() -> None:
    """Run the job whose descriptor is the first argument."""
    job = _take_job(int(sys.argv[1]))
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


def _take_job(fd: int) -> dict[str, Any]:
    with open(fd, encoding="utf-8") as file:
        job: dict[str, Any] = json.load(file)
    return job


def _run(source: str, name: str) -> dict[str, Any]:
    """Execute the code as the module `name` and return its globals."""
    builtins.exit = builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D")  # of `site`, which did not run
    module = ModuleType(name)
    module.__file__ = "solution.py"
    sys.modules[name] = module
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    return module.__dict__
