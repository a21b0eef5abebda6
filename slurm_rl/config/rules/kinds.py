"""Rules about nodes of several kinds: which roles may name one, and what does not go with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig


def kind_problems(config: RunConfig) -> Iterator[str]:
    """What is wrong with cluster.nodes and with who stands where, a sentence each."""
    yield from _feature_problems(config)
    yield from _apart_problems(config)
    yield from _count_problems(config)
    yield from _segment_problems(config)


def _feature_problems(config: RunConfig) -> Iterator[str]:
    kinds, cluster = config.cluster.nodes, config.cluster
    # Name of the key -> the kind that it names, and whether the role cannot do without a GPU.
    named = {
        f"{name}.node_feature": (getattr(config, name).node_feature, True)
        for name in ("policy", "reference", "rollout", "critic")
    }
    named["reward.service.node_feature"] = config.reward.service.node_feature, config.reward.services_on_gpus
    for key, (feature, needs_gpu) in named.items():
        if feature is not None and feature not in kinds:
            yield f"{key} must be one of cluster.nodes; got {feature!r}, known: {', '.join(kinds) or 'none'}"
        elif feature and needs_gpu and cluster.accelerator != "cpu" and not cluster.gpus_of(feature):
            yield (
                f"{key} must be a kind of nodes with GPUs; got {feature!r}, which has none. "
                f"Next: choose another of {', '.join(kinds)}"
            )
    if config.reward.services_on_gpus and cluster.accelerator == "cpu":
        yield "reward.model.device=cuda needs GPUs; got accelerator 'cpu'. Next: reward.model.device=cpu"


def _apart_problems(config: RunConfig) -> Iterator[str]:
    reference, critic = config.reference, config.critic
    apart = {
        "reference": (reference.node_feature, reference.num_workers is not None, "reference.num_workers"),
        "critic": (critic.node_feature, critic.is_apart, "critic.apart=true or critic.num_workers"),
    }
    for name, (feature, is_apart, key) in apart.items():
        if feature is not None and not is_apart:
            yield (
                f"{name}.node_feature needs {key}, since without it the policy's processes hold the "
                f"{name}; got node_feature={feature!r}"
            )


def _count_problems(config: RunConfig) -> Iterator[str]:
    kinds, spares = config.cluster.nodes, config.job.num_spare_nodes
    if kinds and spares:
        yield f"job.num_spare_nodes must be 0 with cluster.nodes, since a spare cannot be of every kind; got {spares}"
    numbers = {name: config.cluster.gpus_of(name) for name in kinds}
    if config.task != "grpo" and len(set(numbers.values())) > 1:
        yield (
            f"task={config.task} starts as many ranks on every node, so gpus_per_node must be the same in all of "
            f"cluster.nodes; got {', '.join(f'{name}: {number}' for name, number in numbers.items())}"
        )


def _segment_problems(config: RunConfig) -> Iterator[str]:
    kinds, cluster, spares = config.cluster.nodes, config.cluster, config.job.num_spare_nodes
    segment = cluster.topology.segment
    counts = {f"cluster.nodes.{name}.count": kind.count for name, kind in kinds.items()}
    for name, count in (counts or {"cluster.num_nodes + job.num_spare_nodes": cluster.num_nodes + spares}).items():
        if segment is not None and count % segment:
            more = -count % segment
            key = f"{name}={count + more}" if counts else f"job.num_spare_nodes={spares + more}"
            yield (
                f"{name} must be divisible by cluster.topology.segment; got {count} and {segment}. "
                f"Next: {key}, or another segment"
            )
