"""Rules of machines: what goes with a launcher, an accelerator and kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.tasks import TASKS

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def machine_problems(config: RunConfig) -> Iterator[str]:
    """What a launcher or an accelerator does not have."""
    cluster = config.cluster
    not_there = {
        f"task={config.task}": TASKS[config.task].under_torchrun,
        "external.start=torchrun": config.external is not None and config.under_torchrun,
        f"container.runtime={config.container.runtime}": config.container.runtime != "none",
        "cluster.nodes": bool(cluster.nodes),
        f"job.num_spare_nodes={config.job.num_spare_nodes}": config.job.num_spare_nodes > 0,
        "cluster.setup": bool(cluster.setup),
    }
    wrong = [name for name, is_wrong in not_there.items() if is_wrong]
    if LAUNCHERS[cluster.launcher].existing and wrong:
        yield (
            "a Ray cluster of others has its own image, its own nodes and no torchrun; got "
            f"{', '.join(wrong)} with cluster.launcher=ray. Next: leave it out, or use Slurm or this machine"
        )
    if (cluster.accelerator == "cpu") != (cluster.gpus_per_node == 0):
        yield (
            "cluster.gpus_per_node must be 0 on accelerator 'cpu' and above 0 elsewhere; "
            f"got {cluster.gpus_per_node} on {cluster.accelerator!r}"
        )
    if config.model.attention == "flash_attention_2" and config.cluster.accelerator == "cpu":
        yield "model.attention=flash_attention_2 needs a GPU; got accelerator 'cpu'. Next: model.attention=auto"
