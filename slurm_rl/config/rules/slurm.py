"""Rules of cluster.slurm: options of sbatch that disagree with each other or with a key of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurm_rl.config.gres import parse_gpus
from slurm_rl.config.launchers import LAUNCHERS

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def slurm_problems(config: RunConfig) -> Iterator[str]:
    """Two keys that ask for different GPUs, memory or cores."""
    if LAUNCHERS[config.cluster.launcher].is_queue:
        yield from _gpu_problems(config)
        yield from _share_problems(config)


def _extra(config: RunConfig) -> dict[str, object]:
    return {name.replace("-", "_"): value for name, value in config.cluster.slurm.extra.items()}


def _gpu_problems(config: RunConfig) -> Iterator[str]:
    cluster, extra = config.cluster, _extra(config)
    # Of --gpus a node gets its share; a node has one task.
    shares = {"gpus_per_node": 1, "gpus_per_task": 1, "gpus": cluster.num_nodes + config.job.num_spare_nodes}
    asked = {f"cluster.slurm.extra.{name}": _count(extra[name]) / of for name, of in shares.items() if name in extra}
    gres = sum(parse_gpus(cluster.slurm.gres or "").values())
    if cluster.slurm.gres and (gres or not asked):
        asked["cluster.slurm.gres"] = gres
    for key, number in asked.items():
        # Without GPUs of its own a run may have to ask for one, to be let into a partition.
        if cluster.gpus_per_node not in (0, number):
            yield (
                f"cluster.gpus_per_node and {key} must ask for the same GPUs; got {cluster.gpus_per_node} and "
                f"{number:g} on each node. Next: set cluster.gpus_per_node={max(1, round(number))}, or leave {key} out"
            )


def _count(value: object) -> int:
    """Return the number of GPUs in the value of --gpus-per-node: `4`, `a100:4` or `a100:2,v100:2`."""
    return sum(parse_gpus(",".join(f"gpu:{part}" for part in str(value).split(","))).values())


def _share_problems(config: RunConfig) -> Iterator[str]:
    cluster, extra = config.cluster, _extra(config)
    own: dict[str, object] = {"cluster.mem_gb_per_node": cluster.mem_gb_per_node}
    own |= {f"cluster.nodes.{name}.mem_gb_per_node": kind.mem_gb_per_node for name, kind in cluster.nodes.items()}
    for name in ("mem_per_cpu", "mem_per_gpu"):
        if set_twice := [f"{key}={value}" for key, value in own.items() if value is not None and name in extra]:
            yield (
                f"sbatch takes one of --mem and --{name.replace('_', '-')}; got {', '.join(set_twice)} and "
                f"cluster.slurm.extra.{name}={extra[name]}. Next: set cluster.mem_gb_per_node=null, or leave "
                f"cluster.slurm.extra.{name} out"
            )
    if "cpus_per_gpu" in extra and cluster.cpus_per_node is not None:
        yield (
            "sbatch takes one of --cpus-per-task and --cpus-per-gpu; got "
            f"cluster.cpus_per_node={cluster.cpus_per_node} and "
            f"cluster.slurm.extra.cpus_per_gpu={extra['cpus_per_gpu']}. Next: leave one of them out"
        )
    if cluster.slurm.exclusive or cluster.nodes:
        return
    if cluster.cpus_per_node is None and "cpus_per_gpu" not in extra:
        yield (
            "cluster.slurm.exclusive=false needs the job's share of the cores, or Slurm gives it one core on most "
            "clusters; got cluster.cpus_per_node=null. Next: set cluster.cpus_per_node"
        )
    if cluster.mem_gb_per_node == "all":
        yield (
            "cluster.slurm.exclusive=false needs the job's share of the memory, or nobody else fits on its nodes; got "
            "cluster.mem_gb_per_node=all. Next: set cluster.mem_gb_per_node in GB, or null for Slurm's default"
        )
