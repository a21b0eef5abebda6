"""A MaxText run as a command of xpk, Google's tool for TPU workloads on GKE: https://github.com/AI-Hypercomputer/xpk.

The script contains no secrets: xpk reads these variables from the environment of the calling shell, by a file of names.
Pure.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.external_argv import RunValues, build_external_argv
from slurm_rl.plugins.export import workload_name

# How a program in a Pathways job reaches its TPUs: MaxText's tutorial on several hosts.
_PATHWAYS_ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "JAX_PLATFORMS": "proxy",
    "JAX_BACKEND_TARGET": "grpc://127.0.0.1:29000",
    "ENABLE_PATHWAYS_PERSISTENCE": "1",
}


@dataclass(frozen=True)
class XpkTarget:
    """Settings of Google Cloud that only the user knows."""

    cluster: str
    tpu_type: str
    image: str
    project: str | None = None
    num_slices: int = 1
    priority: str = "medium"


def render_xpk(config: RunConfig, target: XpkTarget, secret_names: Sequence[str]) -> str:
    """Return a bash script: without an argument it starts the workload; `status`, `wait` and `delete` query it.

    Raises:
        ConfigError: xpk cannot run this, or a value cannot be passed to it.
    """
    argv = shlex.join(build_xpk_argv(config, target))
    watching = build_watching_argv(config, target)
    cases = "".join(f"  {word}) exec {shlex.join(words)} ;;\n" for word, words in watching.items())
    lines = shlex.join(build_env_lines(config, secret_names))
    return (
        "#!/bin/bash\n"
        f"# slurm_rl: {config.name}. {', '.join(secret_names)}: from the environment of this shell.\n"
        "# Without an argument: start the workload. Run it again after an end: MaxText resumes from "
        "base_output_directory/run_name.\n"
        "# status, wait, delete: of this workload.\n"
        "set -euo pipefail\n"
        "case ${1:-create} in\n"
        "  create) ;;\n"
        f"{cases}"
        '  *) echo "$0 takes no argument, status, wait or delete; got $1" >&2; exit 2 ;;\n'
        "esac\n"
        f"lines=({lines})\n"
        "environment() {\n"
        '  for line in "${lines[@]}"; do\n'
        '    if [[ $line == *=* || -n ${!line:-} ]]; then printf "%s\\n" "$line"; fi\n'
        "  done\n"
        "}\n"
        f"{argv} --env-file=<(environment)\n"
    )


def build_xpk_argv(config: RunConfig, target: XpkTarget) -> list[str]:
    """Return the command without its environment."""
    if config.external is None or config.task != "maxtext":
        raise ConfigError(
            "`plan --as xpk` is for task=maxtext, which runs on TPUs",
            seen=f"task={config.task}",
            action="+exp=maxtext_grpo_llama3_70b; for GPUs use `plan --as dstack`",
        )
    if config.checkpoint.upload_url is None or not config.checkpoint.upload_url.startswith("gs://"):
        raise ConfigError(
            "checkpoint.upload_url must be a gs:// URL, since TPU machines keep no files",
            seen=str(config.checkpoint.upload_url),
            action="set checkpoint.upload_url=gs://bucket/folder, MaxText's base_output_directory",
        )
    run = RunValues(
        nodes=config.cluster.num_nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        checkpoints=config.checkpoint.upload_url,
        export=f"{config.checkpoint.upload_url}/{config.name}/export",
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
    argv += [f"--termination-grace-period-seconds={config.job.planned_lead_s}"]
    return [*argv, f"--command={command}"]


def build_watching_argv(config: RunConfig, target: XpkTarget) -> dict[str, list[str]]:
    """Argument of the script -> argv of xpk that queries or deletes this workload."""
    name = workload_name(config.name, "xpk")
    where = [f"--cluster={target.cluster}", *([f"--project={target.project}"] if target.project else [])]
    return {
        "status": ["xpk", "workload", "list", f"--filter-by-job={name}", *where],
        "wait": ["xpk", "workload", "list", f"--wait-for-job-completion={name}", *where],
        "delete": ["xpk", "workload", "delete", f"--workload={name}", *where],
    }


def build_env_lines(config: RunConfig, secret_names: Sequence[str]) -> list[str]:
    """Return the lines of xpk's --env-file: NAME=value, or only NAME for a variable of the shell."""
    values = _PATHWAYS_ENV | {name: value for name, value in config.cluster.env.items() if value is not None}
    for name, value in values.items():
        if not value.isprintable():
            raise ConfigError("a variable for xpk must be one line", seen=f"cluster.env.{name}")
    return [*(f"{name}={value}" for name, value in values.items()), *secret_names]
