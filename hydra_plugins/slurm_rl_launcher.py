"""Our part in Hydra's plugin system: a launcher that hands whole batches of a sweep on.

Every Hydra program on the machine imports this file when it looks for plugins, so it is small and imports Hydra alone.
Hydra takes plugins only from modules below `hydra_plugins`, a namespace package: no __init__.py here.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SweepLauncher(Launcher):
    """Gives each batch of a sweeper to the task function, which takes a list of overrides for each run.

    The task function gives back a value for each run, or an exception, or None where nobody waits for a value.
    """

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._run_batch: Any = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        batch = [list(overrides) for overrides in job_overrides]
        return [_to_return(*pair) for pair in zip(batch, self._run_batch(batch), strict=True)]


def _to_return(overrides: list[str], value: Any) -> JobReturn:
    status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
    return JobReturn(overrides=overrides, status=status, _return_value=value)


ConfigStore.instance().store(
    group="hydra/launcher",
    name="slurm_rl",
    node={"_target_": "hydra_plugins.slurm_rl_launcher.SweepLauncher"},
    provider="slurm_rl",
)
