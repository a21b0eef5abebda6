"""One node's part of the run's own Ray cluster: the command line of `ray start` and its environment.

Nothing is left to Ray's defaults that another job on the node could share: ports, temp dir, token,
address. `--block` keeps `ray start` in front, so that its end is seen at once. Standard library alone.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.node.driver import find_lack_in
from slurm_rl.node.ports import PortPlan
from slurm_rl.node.private_folder import copy_own_files, is_our_folder
from slurm_rl.node.rendezvous import HeadRecord
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.node_groups import group_of
from slurm_rl.run_dir.disk import explain_refusal, say
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.run_dir.run_secret import keep_secret

_RAYS_OWN = "r"
"""What Ray gets within the attempt's folder: it opens its own to everybody (0777), and nobody comes through ours."""
_GPU_LABEL = "slurm_rl.gpu-"
_LONGEST_LOG = 2_000_000
_LONGEST_CAUSE = 300


def node_resource(rank: int) -> str:
    """Custom Ray resource by which the driver recognises a node's rank."""
    return f"slurm_rl_node_{rank}"


def _resources(plan: JobPlan, rank: int) -> dict[str, int]:
    """The node's rank and, for tasks of the user's own, its kind."""
    return {node_resource(rank): 1} | ({group_of(plan.node_groups, rank).name: 1} if plan.node_groups else {})


def explain_ray_end(plan: JobPlan, log: Path, status: int, where: str) -> BringUpError:
    """Why `ray start` ended before the trainer, as an error to raise."""
    rule = f"Ray on {where} must outlive the trainer"
    action = None
    if any(letter.isspace() for letter in plan.python):
        action = f"Ray hands its Python to a shell without quotes: make the environment of {plan.python} at a path "
        action += "without spaces"
    seen = describe_ray_end(log, status)
    return find_lack_in(plan.python, log) or BringUpError(rule, seen=seen, where=log.name, action=action)


def describe_ray_end(log: Path, status: int) -> str:
    """Which of Ray's processes died, by the word of `ray start --block`: `gcs_server died, exit code -9 (signal 9)`;
    else the last thing that it said."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    dead = re.findall(r"BEGIN (\w+)\.(?:out|err) tail \(exit code\(s\)=(.*)\) -----", text)
    words = [f"{process} died, exit code {code}" for process, code in dict.fromkeys(dead)]
    last = text.rstrip().rpartition("\n")[2]
    return "; ".join(words) or f"exit status {status}{last and f': {last[:_LONGEST_CAUSE]}'}"


def keep_ray_logs(tmp_dir: Path, target: Path) -> None:
    """Copy Ray's own logs, the short ones, out of the temp dir, with which they would die."""
    try:
        for session in (tmp_dir / _RAYS_OWN).glob("session_2*") if is_our_folder(tmp_dir) else ():
            if is_our_folder(session):
                copy_own_files(session / "logs", target, _LONGEST_LOG)
    except OSError as error:
        say(f"Ray's logs could not be kept: {explain_refusal(error, target) or error}")


def token_file(run: RunDir, attempt: int) -> Path:
    return run.secrets / f"ray-token-{attempt}"


def create_token(run: RunDir, attempt: int, token: str | None = None) -> None:
    """Write the attempt's Ray token, readable by this user alone.

    Args:
        token: what it is where several machines derive it; None makes one.
    """
    keep_secret(run, token_file(run, attempt), token or secrets.token_hex(32))


def ray_environment(plan: JobPlan, run: RunDir, attempt: int, ports: PortPlan) -> dict[str, str]:
    """What every Ray process and every driver of this attempt needs in its environment."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file(run, attempt)),
        "AUTOSCALER_METRIC_PORT": str(ports.autoscaler_metrics),
        "DASHBOARD_METRIC_PORT": str(ports.dashboard_metrics),
        "RAY_USAGE_STATS_ENABLED": "0",
        # For whoever asks on this node; the last one is the critic's.
        "SLURM_RL_SPARE_PORTS": f"{ports.spare_min}-{ports.spare_max - 1}",
    }


def render_gpu_labels(gpus: Sequence[str]) -> str:
    """A node's GPUs as labels of Ray, whose values may have no slash as older names of MIG devices do.

    >>> render_gpu_labels(["4", "MIG-GPU-8932f937/1/2"])
    'slurm_rl.gpu-0=4,slurm_rl.gpu-1=MIG-GPU-8932f937.1.2'
    """
    return ",".join(f"{_GPU_LABEL}{place}={gpu.replace('/', '.')}" for place, gpu in enumerate(gpus))


def parse_gpu_labels(labels: Mapping[str, str]) -> list[str]:
    """The names that `render_gpu_labels` wrote, among the labels that Ray knows of the node."""
    own = {int(key.removeprefix(_GPU_LABEL)): value for key, value in labels.items() if key.startswith(_GPU_LABEL)}
    return [own[place].replace(".", "/") for place in sorted(own)]


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
    """argv of `ray start` on one node; `head` is None on the head itself.

    Args:
        gpus: what the node's environment calls them (`gpu_names`); told to the driver by Ray's labels.
    """
    argv = [plan.python, "-m", "slurm_rl.node.ray_start", str(plan.limits.start_timeout_s)]
    argv += ["start", "--block", f"--node-ip-address={ip}"]
    if head is None:
        argv += ["--head", f"--port={ports.gcs}"]
        argv += ["--dashboard-host=127.0.0.1", f"--dashboard-port={plan.ray.dashboard_port or ports.dashboard}"]
        argv += [f"--include-dashboard={str(plan.ray.dashboard).lower()}"]
        # No autoscaler: the nodes are those of the job.
        argv += ["--no-monitor"]
    else:
        argv += [f"--address={head.address}"]
    return [
        *argv,
        f"--temp-dir={tmp_dir / _RAYS_OWN}",
        f"--num-cpus={num_cpus}",
        f"--num-gpus={plan.gpus_on(rank)}",
        *([f"--labels={render_gpu_labels(gpus)}"] if gpus else []),
        f"--object-store-memory={plan.ray.object_store_bytes}",
        f"--resources={json.dumps(_resources(plan, rank))}",
        f"--dashboard-agent-listen-port={ports.dashboard_agent_listen}",
        f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--metrics-export-port={ports.metrics_export}",
        f"--min-worker-port={ports.worker_min}",
        f"--max-worker-port={ports.worker_max}",
        "--disable-usage-stats",
        # So that the legacy debugger is reached from other nodes.
        *(["--ray-debugger-external"] if plan.env.get("RAY_DEBUG") == "legacy" else []),
        # It hands every actor's output to the driver. Ours does not print it; of others it may be all that they say.
        f"--include-log-monitor={str(plan.external is not None).lower()}",
    ]
