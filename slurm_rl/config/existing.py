"""What a run on a Ray cluster of others (cluster.launcher=ray) can and cannot ask for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.tasks import TASKS

if TYPE_CHECKING:
    from slurm_rl.config.cluster import ClusterConfig
    from slurm_rl.config.run import RunConfig


def check_address(cluster: ClusterConfig) -> None:
    """cluster.address and cluster.launcher go together, and the address is that of a dashboard.

    Raises:
        ValueError: with both values and what to do.
    """
    if LAUNCHERS[cluster.launcher].existing != (cluster.address is not None):
        raise ValueError(
            f"cluster.address and cluster.launcher=ray go together; got {cluster.address!r} and {cluster.launcher!r}. "
            "Next: +cluster=ray cluster.address=http://host:8265"
        )
    if cluster.remote_root is not None and not LAUNCHERS[cluster.launcher].existing:
        raise ValueError(f"cluster.remote_root is for cluster.launcher=ray; got it with {cluster.launcher!r}")
    if cluster.address is None:
        return
    if not is_dashboard_url(cluster.address):
        raise ValueError(
            "cluster.address is the URL of a Ray dashboard, http://host:8265 or https://...; "
            f"got {hide_password(cluster.address)!r}. Next: name the dashboard, not the GCS (port 6379) nor ray://"
        )
    if cluster.remote_root is not None and not cluster.remote_root.startswith("/"):
        raise ValueError(
            "cluster.remote_root is an absolute path that every node of that cluster sees (NFS, a mounted bucket); "
            f"got {cluster.remote_root!r}. Next: name such a path, and checkpoint.url=gs://... for checkpoints in a "
            "bucket"
        )


def is_dashboard_url(address: str) -> bool:
    """Scheme, host, perhaps a port and a path; no password, no query.

    >>> is_dashboard_url("http://head:8265"), is_dashboard_url("ray://head:10001"), is_dashboard_url("head:6379")
    (True, False, False)
    """
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    plain = not (parts.username or parts.password or parts.query or parts.fragment) and " " not in address
    return parts.scheme in ("http", "https") and has_host and plain


def hide_password(address: str) -> str:
    """>>> hide_password("https://me:secret@host/x")
    'https://...@host/x'
    """
    scheme, found, rest = address.partition("://")
    return f"{scheme}://...@{rest.rpartition('@')[2]}" if found and "@" in rest else address


def check_existing_cluster(config: RunConfig) -> None:
    """Refuse what only machines that we start ourselves can do.

    Raises:
        ValueError: naming the key.
    """
    if not LAUNCHERS[config.cluster.launcher].existing:
        return
    wrong = {
        f"task={config.task}": TASKS[config.task].under_torchrun,
        f"container.runtime={config.container.runtime}": config.container.runtime != "none",
        "cluster.node_features": bool(config.cluster.node_features),
        f"job.num_spare_nodes={config.job.num_spare_nodes}": config.job.num_spare_nodes > 0,
        "cluster.setup": bool(config.cluster.setup),
    }
    found = [name for name, is_wrong in wrong.items() if is_wrong]
    if found:
        raise ValueError(
            "a Ray cluster of others has its own image, its own nodes and no torchrun; got "
            f"{', '.join(found)} with cluster.launcher=ray. Next: leave it out, or use Slurm or this machine"
        )
