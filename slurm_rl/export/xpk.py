"""A MaxText run as a command of xpk, Google's tool for TPU workloads on GKE: https://github.com/AI-Hypercomputer/xpk.

The script holds no value of a secret: xpk reads those variables from the environment of the shell that runs it,
by a file of names. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.export import workload_name
from slurm_rl.external.argv import RunValues, build_external_argv

# How a program in a Pathways job reaches its TPUs: MaxText's tutorial on several hosts.
_PATHWAYS_ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "JAX_PLATFORMS": "proxy",
    "JAX_BACKEND_TARGET": "grpc://127.0.0.1:29000",
    "ENABLE_PATHWAYS_PERSISTENCE": "1",
}


@dataclass(frozen=True)
class XpkTarget:
    """What only the user knows of Google's side."""

    cluster: str
    tpu_type: str
    image: str
    project: str | None = None
    num_slices: int = 1
    priority: str = "medium"


def render_xpk(config: RunConfig, target: XpkTarget, secret_names: Sequence[str]) -> str:
    """A bash script of one command.

    Raises:
        ConfigError: the run is none for xpk, or something cannot be said to it.
    """
    argv = shlex.join(build_xpk_argv(config, target))
    lines = shlex.join(build_env_lines(config, secret_names))
    return (
        "#!/bin/bash\n"
        f"# slurm_rl: {config.name}. {', '.join(secret_names)}: from the environment of this shell.\n"
        "# Run it again after an end: MaxText resumes from base_output_directory/run_name.\n"
        "set -euo pipefail\n"
        f"lines=({lines})\n"
        "environment() {\n"
        '  for line in "${lines[@]}"; do\n'
        '    if [[ $line == *=* || -n ${!line:-} ]]; then printf "%s\\n" "$line"; fi\n'
        "  done\n"
        "}\n"
        f"{argv} --env-file=<(environment)\n"
    )


def build_xpk_argv(config: RunConfig, target: XpkTarget) -> list[str]:
    """The command but for its environment."""
    if config.external is None or config.task != "maxtext":
        raise ConfigError(
            "export xpk is for task=maxtext, which runs on TPUs",
            seen=f"task={config.task}",
            action="+exp=maxtext_grpo_llama3_70b; for GPUs export dstack",
        )
    if config.checkpoint.url is None or not config.checkpoint.url.startswith("gs://"):
        raise ConfigError(
            "checkpoint.url must be a gs:// URL, since TPU machines keep nothing",
            seen=str(config.checkpoint.url),
            action="set checkpoint.url=gs://bucket/folder, MaxText's base_output_directory",
        )
    run = RunValues(
        nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        checkpoints=config.checkpoint.url,
        export=f"{config.checkpoint.url}/{config.name}/export",
    )
    command = shlex.join(build_external_argv(config.external, run, resume=False))
    if not command.isprintable():
        raise ConfigError("the command must be one line, which xpk writes into YAML", seen=ascii(command))
    name = workload_name(config.name, "xpk")
    argv = ["xpk", "workload", "create-pathways", f"--workload={name}"]
    argv += [f"--docker-image={target.image}", f"--cluster={target.cluster}", f"--tpu-type={target.tpu_type}"]
    argv += [f"--num-slices={target.num_slices}", f"--priority={target.priority}"]
    argv += [f"--project={target.project}"] if target.project else []
    # A failed attempt is one that MaxText resumes by itself.
    argv += [f"--max-restarts={config.job.max_failures}"] if config.job.max_failures else []
    argv += [f"--termination-grace-period-seconds={config.job.signal_lead_s}"]
    return [*argv, f"--command={command}"]


def build_env_lines(config: RunConfig, secret_names: Sequence[str]) -> list[str]:
    """Of xpk's --env-file: NAME=value, or NAME alone for what the shell has."""
    values = _PATHWAYS_ENV | {name: value for name, value in config.cluster.env.items() if value is not None}
    for name, value in values.items():
        if not value.isprintable():
            raise ConfigError("a variable for xpk must be one line", seen=f"cluster.env.{name}")
    return [*(f"{name}={value}" for name, value in values.items()), *secret_names]
