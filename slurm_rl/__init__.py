"""slurm_rl: reinforcement learning of language models on Slurm clusters, from one command or from Python.

    import slurm_rl

    config = slurm_rl.load_config(["+exp=demo", "optim.lr=1e-4"])
    run = slurm_rl.submit(config)
    print(run.wait().word, run.metrics()[-1])

`__all__` lists the public names; docs/python-api.md describes them. Each name is imported at its first use, since the
node agent has only the standard library.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slurm_rl import errors, rewards
    from slurm_rl.algorithms import advantages
    from slurm_rl.config.load import load_config
    from slurm_rl.config.run import RunConfig
    from slurm_rl.errors import ConfigError, SlurmRLError, WaitError
    from slurm_rl.launch.controller.record import RunState
    from slurm_rl.launch.runs.run import Run, plan_run, submit
    from slurm_rl.plan.job import JobPlan

__all__ = [
    "ConfigError",
    "JobPlan",
    "Run",
    "RunConfig",
    "RunState",
    "SlurmRLError",
    "WaitError",
    "advantages",
    "errors",
    "load_config",
    "plan_run",
    "rewards",
    "submit",
]

_MODULES = {"errors": "slurm_rl.errors", "rewards": "slurm_rl.rewards"}
_NEEDS_TORCH = {"advantages": "slurm_rl.algorithms.advantages"}
_NAMES = {
    "ConfigError": "slurm_rl.errors",
    "JobPlan": "slurm_rl.plan.job",
    "Run": "slurm_rl.launch.runs.run",
    "RunConfig": "slurm_rl.config.run",
    "RunState": "slurm_rl.launch.controller.record",
    "SlurmRLError": "slurm_rl.errors",
    "WaitError": "slurm_rl.errors",
    "load_config": "slurm_rl.config.load",
    "plan_run": "slurm_rl.launch.runs.run",
    "submit": "slurm_rl.launch.runs.run",
}

if not TYPE_CHECKING:  # else every misspelt name would have a type

    def __getattr__(name: str) -> object:
        if name in _NAMES:
            found = getattr(importlib.import_module(_NAMES[name]), name)
        elif name in _MODULES:
            found = importlib.import_module(_MODULES[name])
        elif name in _NEEDS_TORCH:
            from slurm_rl.config.user_files.load import import_heavy

            found = import_heavy(_NEEDS_TORCH[name], f"slurm_rl.{name} needs torch and numpy")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> "list[str]":  # quoted: an old Python, which is refused, reads this file
        return sorted({*globals(), *__all__})
