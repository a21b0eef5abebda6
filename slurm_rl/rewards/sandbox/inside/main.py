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

from slurm_rl.rewards.sandbox.inside.check import Caller, run_checks
from slurm_rl.rewards.sandbox.inside.confine import confine
from slurm_rl.rewards.sandbox.inside.serve import serve


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
