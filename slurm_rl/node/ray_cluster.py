"""The command line and environment of `ray start` on one node of the run's own cluster. Standard library only.

Ports, temp dir, token and address are all set, since Ray's defaults would collide with another job on the node.
`--block` keeps `ray start` in the foreground, so that its end is noticed at once.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_rl.errors import BringUpError
from slurm_rl.node.driver import find_lack_in
from slurm_rl.node.private_folder import copy_own_files, is_our_folder
from slurm_rl.plan.node_groups import group_of
from slurm_rl.run_dir.io_errors import explain_io_error
from slurm_rl.run_dir.run_secret import token_file

if TYPE_CHECKING:
    from slurm_rl.node.ports import PortPlan
    from slurm_rl.node.rendezvous import HeadRecord
    from slurm_rl.plan.job import JobPlan
    from slurm_rl.run_dir.run_dir import RunDir

_log = logging.getLogger(__name__)
_RAYS_OWN = "r"
"""Ray's folder in the attempt's private one: Ray opens its own to all users (0777)."""
_GPU_LABEL = "slurm_rl.gpu-"
_MAX_LOG_BYTES = 2_000_000
_MAX_CAUSE = 300


def node_resource(rank: int) -> str:
    """Return the custom Ray resource by which the driver recognises a node's rank."""
    return f"slurm_rl_node_{rank}"


def explain_ray_end(plan: JobPlan, log: Path, status: int, where: str) -> BringUpError:
    """Return the error for a `ray start` that ended before the trainer."""
    action = None
    if any(letter.isspace() for letter in plan.python):
        action = f"Ray passes its Python to a shell without quotes: make the environment of {plan.python} at a path "
        action += "without spaces"
    rule, seen = f"Ray on {where} must outlive the trainer", describe_ray_end(log, status)
    return find_lack_in(plan.python, log) or BringUpError(rule, seen=seen, where=log.name, action=action)


def describe_ray_end(log: Path, status: int) -> str:
    """Return which of Ray's processes died, as `ray start --block` reports it, or the last line of the log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    dead = re.findall(r"BEGIN (\w+)\.(?:out|err) tail \(exit code\(s\)=(.*)\) -----", text)
    causes = [f"{process} died, exit code {code}" for process, code in dict.fromkeys(dead)]
    last = text.rstrip().rpartition("\n")[2]
    return "; ".join(causes) or f"exit status {status}{last and f': {last[:_MAX_CAUSE]}'}"


def keep_ray_logs(tmp_dir: Path, target: Path) -> None:
    """Copy Ray's short logs out of the temp dir before it is removed."""
    try:
        for session in (tmp_dir / _RAYS_OWN).glob("session_2*") if is_our_folder(tmp_dir) else ():
            if is_our_folder(session):
                copy_own_files(session / "logs", target, _MAX_LOG_BYTES)
    except OSError as error:
        _log.warning("cannot keep Ray's logs: %s", explain_io_error(error, target) or error)


def ray_environment(plan: JobPlan, run: RunDir, attempt: int, ports: PortPlan) -> dict[str, str]:
    """Return the variables for every Ray process and every driver of this attempt."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file(run, attempt)),
        "AUTOSCALER_METRIC_PORT": str(ports.autoscaler_metrics),
        "DASHBOARD_METRIC_PORT": str(ports.dashboard_metrics),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The last spare port is the critic's.
        "SLURM_RL_SPARE_PORTS": f"{ports.spare_min}-{ports.spare_max - 1}",
    }


def render_gpu_labels(gpus: Sequence[str]) -> str:
    """Return the names of a node's GPUs as Ray labels. Slashes of old MIG names are not allowed there.

    >>> render_gpu_labels(["4", "MIG-GPU-8932f937/1/2"])
    'slurm_rl.gpu-0=4,slurm_rl.gpu-1=MIG-GPU-8932f937.1.2'
    """
    return ",".join(f"{_GPU_LABEL}{index}={gpu.replace('/', '.')}" for index, gpu in enumerate(gpus))


def parse_gpu_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the names that `render_gpu_labels` wrote."""
    own = {int(key.removeprefix(_GPU_LABEL)): value for key, value in labels.items() if key.startswith(_GPU_LABEL)}
    return [own[index].replace(".", "/") for index in sorted(own)]


def build_ray_start_argv(
    plan: JobPlan,
    *,
    rank: int,
    ip: str,
    num_cpus: int,
    gpus: Sequence[str],
    ports: PortPlan,
    tmp_dir: Path,
    head: HeadRecord | None,
) -> list[str]:
    """Return the command line of `ray start` on one node.

    Args:
        gpus: their names in the node's environment (`gpu_names`); the driver reads them from Ray's labels.
        head: None on the head itself.
    """
    argv = [plan.python, "-m", "slurm_rl.node.ray_start", str(plan.limits.start_timeout_s)]
    argv += ["start", "--block", f"--node-ip-address={ip}"]
    if head is None:
        argv += ["--head", f"--port={ports.gcs}"]
        argv += ["--dashboard-host=127.0.0.1", f"--dashboard-port={plan.ray.dashboard_port or ports.dashboard}"]
        argv += [f"--include-dashboard={str(plan.ray.dashboard).lower()}"]
        argv += ["--no-monitor"]  # no autoscaler: the nodes are those of the job
    else:
        argv += [f"--address={head.address}"]
    # Labels for tasks of the user: the kind of the node.
    resources = {node_resource(rank): 1} | ({group_of(plan.node_groups, rank).name: 1} if plan.node_groups else {})
    return [
        *argv,
        f"--temp-dir={tmp_dir / _RAYS_OWN}",
        f"--num-cpus={num_cpus}",
        f"--num-gpus={plan.gpus_on(rank)}",
        *([f"--labels={render_gpu_labels(gpus)}"] if gpus else []),
        f"--object-store-memory={plan.ray.object_store_bytes}",
        f"--resources={json.dumps(resources)}",
        f"--dashboard-agent-listen-port={ports.dashboard_agent_listen}",
        f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--metrics-export-port={ports.metrics_export}",
        f"--min-worker-port={ports.worker_min}",
        f"--max-worker-port={ports.worker_max}",
        "--disable-usage-stats",
        # The legacy debugger is used from other nodes.
        *(["--ray-debugger-external"] if plan.env.get("RAY_DEBUG") == "legacy" else []),
        # It sends the output of actors to the driver: needed only by external trainers.
        f"--include-log-monitor={str(plan.external is not None).lower()}",
    ]
