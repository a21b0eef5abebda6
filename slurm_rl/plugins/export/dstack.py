"""Export a run as a dstack task: https://dstack.ai/docs/concepts/tasks. Pure.

Every node runs `python -m slurm_rl join`, which reads its rank from DSTACK_*. The file has names of secrets only;
dstack reads the values from the shell of `dstack apply`.
"""

import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.export import workload_name

RUN_TOKEN = "SLURM_RL_TOKEN"
"""Variable with the token that authenticates the machines of a run."""
_FROM_LOCK = "pip install --no-deps --require-hashes -r /dev/stdin"
# flash-attn takes half an hour to build, and torch has its own attention.
_INSTALL = {
    "nvidia": [f"grep -v ^flash-attn== containers/cuda/constraints.txt | {_FROM_LOCK}"],
    "cpu": [
        f"grep ^torch== constraints.txt | {_FROM_LOCK} --index-url https://download.pytorch.org/whl/cpu",
        f"grep -v ^torch== constraints.txt | {_FROM_LOCK}",
    ],
}
# GPU name of Slurm -> name of dstack, if they differ.
_GPU_NAMES = {"MI300": "MI300X"}
# Segments of torch and vLLM, in addition to Ray's object store.
_SHM_MARGIN_GB = 8


def render_dstack(
    config: RunConfig,
    overrides: Sequence[str],
    secret_names: Sequence[str],
    image: str | None,
    volumes: Sequence[str] = (),
) -> str:
    """Return the text of a .dstack.yml.

    Args:
        config: the composed config.
        overrides: overrides of the command line, from which the nodes compose the same config.
        secret_names: environment variables to pass on.
        image: Docker reference; None takes the image of the config, or installs the packages in dstack's own image.
        volumes: `source:/path`; source is a folder of the machine or the name of a network volume. container.mounts
            are added.

    Raises:
        ConfigError: dstack does not support a setting of the run.
    """
    task = build_task(config, overrides, secret_names, image, volumes)
    text = yaml.safe_dump(task, sort_keys=False, width=10_000, allow_unicode=True)
    names = ", ".join([*secret_names, RUN_TOKEN])
    return (
        f"# slurm_rl: {config.name}. In a checkout of slurm_rl: dstack apply -f <this file>\n"
        f"# Names without a value ({names}) come from the environment of that shell, where dstack requires them;\n"
        "# take out those that the run does not need.\n"
        f"# {RUN_TOKEN} is any long random string: export {RUN_TOKEN}=$(openssl rand -hex 32)\n{text}"
    )


def build_task(
    config: RunConfig,
    overrides: Sequence[str],
    secret_names: Sequence[str],
    image: str | None,
    volumes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the task as a tree."""
    if any("${{" in word for word in overrides):
        raise ConfigError("an override must not hold ${{, which dstack replaces", seen=" ".join(overrides))
    image = image or _docker_image(config)
    if image is None and (config.cluster.accelerator == "amd" or config.external is not None):
        raise ConfigError(
            "dstack's own image has neither AMD's torch nor other trainers",
            seen=f"no image, cluster.accelerator={config.cluster.accelerator}, task={config.task}",
            action="--image <Docker reference>",
        )
    node = ["python", "-m", "slurm_rl", "join", *node_overrides(config, overrides)]
    install = [] if image else [*_INSTALL[config.cluster.accelerator], "pip install --no-deps ."]
    commands = [*install, shlex.join(node)]
    task: dict[str, Any] = {
        "type": "task",
        "name": workload_name(config.name, "dstack"),
        "nodes": config.cluster.num_nodes,
    }
    task |= {"image": image} if image else {"python": "3.11"}
    # The nodes run from the checkout.
    task |= {"repos": ["."], "env": [*secret_names, RUN_TOKEN], "commands": [*config.cluster.setup, *commands]}
    if config.ray.dashboard and config.ray.dashboard_port is not None:
        # While `dstack apply` is attached, it forwards this port of the head to the local machine.
        task["ports"] = [config.ray.dashboard_port]
    task["resources"] = _resources(config)
    if mounted := _volumes(config, volumes):
        task["volumes"] = mounted
    if config.job.time_limit_min is not None:
        task["max_duration"] = f"{config.job.time_limit_min}m"
    # The run saves between the notice and the end.
    task["stop_duration"] = f"{config.job.planned_lead_s}s"
    if config.checkpoint.upload_url is not None:
        # New machines have only the uploaded checkpoints.
        task["retry"] = {"on_events": ["no-capacity", "interruption"], "duration": "1d"}
    return task


def node_overrides(config: RunConfig, overrides: Sequence[str]) -> list[str]:
    """Return the overrides with those for a machine that is already a container."""
    added = []
    if not config.cluster.launcher_entry.by_node:
        added.append("cluster.launcher=manual")
    if config.container.image is not None:
        added += ["container.runtime=none", "container.image=null"]
    if config.run_dir is None:
        # The default name has a time, which would differ between nodes.
        added.append(f"run_dir={quote_for_hydra(f'{config.cluster.run_root}/{config.name}')}")
    return [*overrides, *added]


def quote_for_hydra(text: str) -> str:
    r"""Quote a value for Hydra.

    >>> quote_for_hydra("runs/a"), quote_for_hydra("a b")
    ('runs/a', "'a b'")
    """
    if re.fullmatch(r"[A-Za-z0-9_.-]*/[A-Za-z0-9_./-]*", text):
        return text  # neither a number nor a keyword
    # Backslashes are special only before a quote, including the closing one.
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"


def _volumes(config: RunConfig, given: Sequence[str]) -> list[str]:
    """Return volumes in dstack's notation: `/folder/of/the/machine:/path`, or `network-volume:/path`."""
    for mount in config.container.mounts:
        if mount.read_only:
            raise ConfigError(
                "dstack has no read-only volumes",
                seen=f"container.mounts {mount.source}",
                action="leave out :ro",
            )
    for volume in given:
        source, _, path = volume.partition(":")
        if not source or not path.startswith("/") or ":" in path:
            raise ConfigError(
                "--volume must be a folder of the machine or a network volume's name, a colon and an absolute path",
                seen=volume,
                action="--volume /checkpoints:/checkpoints",
            )
    found = [*(f"{mount.source}:{mount.target}" for mount in config.container.mounts), *given]
    paths = [volume.partition(":")[2] for volume in found]
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ConfigError("a path must have one volume", seen=min(twice))
    return found


def _docker_image(config: RunConfig) -> str | None:
    image = config.container.image
    if image is not None and (image.startswith("/") or "#" in image):
        raise ConfigError(
            "dstack starts Docker images; it cannot use an image file of this cluster",
            seen=image,
            action="name a reference: --image registry.example/slurm_rl:1",
        )
    return image


def _resources(config: RunConfig) -> dict[str, Any]:
    cluster = config.cluster
    found: dict[str, Any] = {}
    if cluster.gpus_per_node:
        gpu = {
            "vendor": cluster.accelerator,
            "name": _GPU_NAMES.get(cluster.gpu_type.upper(), cluster.gpu_type.upper()) if cluster.gpu_type else None,
            "memory": f"{cluster.gpu_mem_gb:g}GB" if cluster.gpu_mem_gb else None,
            "count": cluster.gpus_per_node,
        }
        found["gpu"] = {key: value for key, value in gpu.items() if value is not None}
    if cluster.cpus_per_node:
        found["cpu"] = f"{cluster.cpus_per_node}.."
    if isinstance(cluster.mem_gb_per_node, int):
        found["memory"] = f"{cluster.mem_gb_per_node}GB.."
    shm_gb = config.container.shm_size_gb or math.ceil(config.ray.object_store_gb) + _SHM_MARGIN_GB
    return {**found, "shm_size": f"{shm_gb}GB"}
