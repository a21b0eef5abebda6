"""Rules of the machines: node groups, launcher, accelerator and options of sbatch."""

from collections.abc import Iterator

from slurm_rl.config.run import RunConfig


def node_group_problems(config: RunConfig) -> Iterator[str]:
    """Check cluster.nodes and the roles that select node groups."""
    yield from _role_problems(config)
    yield from _dedicated_problems(config)
    groups, cluster, spares = config.cluster.nodes, config.cluster, config.job.num_spare_nodes
    if groups and spares:
        yield f"job.num_spare_nodes must be 0 with cluster.nodes, since a spare fits only one group; got {spares}"
    numbers = {name: cluster.gpus_of(name) for name in groups}
    if config.task != "grpo" and len(set(numbers.values())) > 1:
        yield (
            f"task={config.task} starts equally many ranks on every node, so gpus_per_node must be the same in all of "
            f"cluster.nodes; got {', '.join(f'{name}: {number}' for name, number in numbers.items())}"
        )
    segment = cluster.topology.segment
    counts = {f"cluster.nodes.{name}.count": group.count for name, group in groups.items()}
    for name, count in (counts or {"cluster.num_nodes + job.num_spare_nodes": cluster.num_nodes + spares}).items():
        if segment is not None and count % segment:
            more = -count % segment
            key = f"{name}={count + more}" if counts else f"job.num_spare_nodes={spares + more}"
            yield (
                f"{name} must be divisible by cluster.topology.segment; got {count} and {segment}. "
                f"Next: {key}, or another segment"
            )


def _role_problems(config: RunConfig) -> Iterator[str]:
    groups, cluster = config.cluster.nodes, config.cluster
    # Key -> the group that it selects, and whether the role needs a GPU.
    named = {
        f"{name}.node_group": (getattr(config, name).node_group, True)
        for name in ("policy", "reference", "rollout", "critic")
    }
    named["reward.service.node_group"] = config.reward.service.node_group, config.reward.models_on_gpus
    server = config.reward.judge.server
    named["reward.judge.server.node_group"] = server.node_group, True
    for key, (group, needs_gpu) in named.items():
        if group is not None and group not in groups:
            yield f"{key} must be one of cluster.nodes; got {group!r}, known: {', '.join(groups) or 'none'}"
        elif group and needs_gpu and cluster.accelerator != "cpu" and not cluster.gpus_of(group):
            yield (
                f"{key} must be a node group with GPUs; got {group!r}, which has none. "
                f"Next: choose another of {', '.join(groups)}"
            )
    if server.tensor_parallel_size > 1 and cluster.accelerator == "cpu":
        size = server.tensor_parallel_size
        yield f"reward.judge.server.tensor_parallel_size must be 1 on accelerator 'cpu'; got {size}. Next: leave it out"
    if config.reward.models_on_gpus and cluster.accelerator == "cpu":
        yield "reward.model.device=cuda needs GPUs; got accelerator 'cpu'. Next: reward.model.device=cpu"


def _dedicated_problems(config: RunConfig) -> Iterator[str]:
    reference, critic = config.reference, config.critic
    roles = {
        "reference": (reference.node_group, reference.num_workers is not None, "reference.num_workers"),
        "critic": (critic.node_group, critic.is_dedicated, "critic.dedicated_gpus=true or critic.num_workers"),
    }
    for name, (group, is_dedicated, key) in roles.items():
        if group is not None and not is_dedicated:
            yield (
                f"{name}.node_group needs {key}, since otherwise the policy's processes hold the {name}; got "
                f"node_group={group!r}"
            )


def cluster_problems(config: RunConfig) -> Iterator[str]:
    """Check that launcher and accelerator support the rest of the config."""
    from slurm_rl.config.usage import find_changed

    cluster = config.cluster
    lacks = cluster.launcher_entry.lacks
    if wrong := {key: value for key, value in find_changed(config) if key.startswith(lacks)}:
        names = (key if isinstance(value, dict) else f"{key}={value}" for key, value in wrong.items())
        yield (
            f"cluster.launcher={cluster.launcher} does not support {', '.join(names)}. Next: leave it out, or use "
            "another launcher"
        )
    if cluster.launcher_entry.existing and config.under_torchrun:
        yield (
            f"task={config.task} needs torchrun; got cluster.launcher={cluster.launcher}, which does not start it. "
            "Next: choose another launcher"
        )
    if (cluster.accelerator == "cpu") != (cluster.gpus_per_node == 0):
        yield (
            "cluster.gpus_per_node must be 0 on accelerator 'cpu' and above 0 elsewhere; "
            f"got {cluster.gpus_per_node} on {cluster.accelerator!r}"
        )
    if config.model.attention == "flash_attention_2" and cluster.accelerator == "cpu":
        yield "model.attention=flash_attention_2 needs a GPU; got accelerator 'cpu'. Next: model.attention=auto"


def slurm_problems(config: RunConfig) -> Iterator[str]:
    """Refuse two keys that request different GPUs, memory or cores from Slurm."""
    if not config.cluster.launcher_entry.is_queue:
        return
    extra: dict[str, object] = {name.replace("-", "_"): value for name, value in config.cluster.slurm.extra.items()}
    yield from _gpu_problems(config, extra)
    yield from _memory_problems(config, extra)
    cluster = config.cluster
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
            "cluster.slurm.exclusive=false needs the job's number of cores, or Slurm allocates one on most clusters; "
            "got cluster.cpus_per_node=null. Next: set cluster.cpus_per_node"
        )
    if cluster.mem_gb_per_node == "all":
        yield (
            "cluster.slurm.exclusive=false needs the job's memory, or no other job fits on its nodes; got "
            "cluster.mem_gb_per_node=all. Next: set cluster.mem_gb_per_node in GB, or null for Slurm's default"
        )


def _gpu_problems(config: RunConfig, extra: dict[str, object]) -> Iterator[str]:
    from slurm_rl.config.gres import parse_gpus

    cluster = config.cluster
    # Key -> nodes that share the number; a node has one task.
    shares = {"gpus_per_node": 1, "gpus_per_task": 1, "gpus": cluster.num_nodes + config.job.num_spare_nodes}
    requested = {
        f"cluster.slurm.extra.{name}": _count_gpus(extra[name]) / nodes
        for name, nodes in shares.items()
        if name in extra
    }
    gres = sum(parse_gpus(cluster.slurm.gres or "").values())
    if cluster.slurm.gres and (gres or not requested):
        requested["cluster.slurm.gres"] = gres
    for key, number in requested.items():
        # A CPU run may have to request a GPU to be admitted to a partition.
        if cluster.gpus_per_node not in (0, number):
            yield (
                f"cluster.gpus_per_node and {key} must ask for the same GPUs; got {cluster.gpus_per_node} and "
                f"{number:g} on each node. Next: set cluster.gpus_per_node={max(1, round(number))}, or leave {key} out"
            )


def _count_gpus(value: object) -> int:
    """Return the number of GPUs in a value of --gpus-per-node: `4`, `a100:4` or `a100:2,v100:2`."""

    from slurm_rl.config.gres import parse_gpus

    return sum(parse_gpus(",".join(f"gpu:{part}" for part in str(value).split(","))).values())


def _memory_problems(config: RunConfig, extra: dict[str, object]) -> Iterator[str]:
    cluster = config.cluster
    own: dict[str, object] = {"cluster.mem_gb_per_node": cluster.mem_gb_per_node}
    own |= {f"cluster.nodes.{name}.mem_gb_per_node": group.mem_gb_per_node for name, group in cluster.nodes.items()}
    for name in ("mem_per_cpu", "mem_per_gpu"):
        if set_twice := [f"{key}={value}" for key, value in own.items() if value is not None and name in extra]:
            yield (
                f"sbatch takes one of --mem and --{name.replace('_', '-')}; got {', '.join(set_twice)} and "
                f"cluster.slurm.extra.{name}={extra[name]}. Next: set cluster.mem_gb_per_node=null, or leave "
                f"cluster.slurm.extra.{name} out"
            )
