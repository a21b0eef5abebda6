"""Where a machine reads which node of a run it is: one function a source, one row in SOURCES. Standard library alone.

A variable that is empty counts as not set. A value that cannot be, alone or together with another variable's, is an
error that names the variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import HOSTS_VARIABLE, NODE_VARIABLE

Environment = Mapping[str, str]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_RUNPOD_DOMAIN = "runpod.internal"


@dataclass(frozen=True)
class Flags:
    """What the command line says of this machine; None where it says nothing."""

    rank: int | None = None
    num_nodes: int | None = None
    head: str | None = None
    port: int | None = None
    job_key: str | None = None


@dataclass(frozen=True)
class NodeIdentity:
    """Which node this is, as far as one source knows."""

    source: str
    """Who said it: flags, Slurm, dstack, RunPod, GCP, torchrun."""
    rank: int | None
    """0 is the head; None: a worker whose number the head gives."""
    num_nodes: int | None = None
    """Of the whole run, the head included; None: the config says."""
    head: str | None = None
    """Name or address of the head; None where the source does not know it."""
    port: int | None = None
    """On the head; None: the config says."""
    job_key: str | None = None
    """Names the job on each machine, where all of them know a name for it."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes by rank, where they are known beforehand."""
    name: str | None = None
    """What this machine is called there; None: its host name."""
    wants_debugger: bool = False
    """RunPod's DEBUG_RAY."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def from_flags(env: Environment, flags: Flags) -> NodeIdentity | None:
    """--rank with --nodes and --head; a worker may leave out --rank and gets one from the head."""
    if flags.rank is None and flags.head is None:
        return None
    if flags.rank is not None and flags.rank < 0:
        raise ConfigError("--rank must be 0 (the head) or above", seen=flags.rank)
    if flags.rank is not None and flags.num_nodes is not None and flags.rank >= flags.num_nodes:
        seen = f"{flags.rank}, {flags.num_nodes}"
        raise ConfigError("--rank must be below --nodes, since it counts from 0", seen=seen)
    hosts = tuple(filter(None, env.get(HOSTS_VARIABLE, "").split(",")))
    return NodeIdentity("flags", flags.rank, flags.num_nodes, flags.head, flags.port, flags.job_key, hosts)


def from_slurm(env: Environment, flags: Flags) -> NodeIdentity | None:
    """A task of srun, one a node; its rank is its node's place in the controller's list, where there is one."""
    if "SLURM_PROCID" not in env or "SLURM_JOB_ID" not in env:
        return None
    rank, size = _rank_and_size(env, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_PROCID")
    if _number(env, "SLURM_LOCALID"):
        raise ConfigError(
            "SLURM_LOCALID must be 0: one task a node",
            seen=env["SLURM_LOCALID"],
            action="srun --ntasks-per-node=1 ...",
        )
    hosts = tuple(filter(None, env.get(HOSTS_VARIABLE, "").split(",")))
    name = env.get(NODE_VARIABLE) or None
    if hosts and name is not None:
        if name not in hosts:
            seen = f"{name}; {HOSTS_VARIABLE}={','.join(hosts)}"
            raise ConfigError(f"{NODE_VARIABLE} must be one of the nodes that the controller chose", seen=seen)
        rank = hosts.index(name)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    head = hosts[0] if hosts else first_host(nodes) if nodes else None
    return NodeIdentity("Slurm", rank, size, head, None, env["SLURM_JOB_ID"], hosts, name)


def from_dstack(env: Environment, flags: Flags) -> NodeIdentity | None:
    """A node of a dstack task; all of them know every address."""
    names = ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP")
    present = [name for name in names if env.get(name)]
    if not present:
        return None
    rank, size = _rank_and_size(env, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", present[0])
    master = _require(env, "DSTACK_MASTER_NODE_IP", present[0])
    hosts = tuple(env.get("DSTACK_NODES_IPS", "").split())
    if hosts and len(hosts) != size:
        raise ConfigError(
            "DSTACK_NODES_IPS must hold DSTACK_NODES_NUM addresses", seen=f"{len(hosts)} addresses, {size} nodes"
        )
    if hosts and hosts[0] != master:
        raise ConfigError("DSTACK_MASTER_NODE_IP must be the first of DSTACK_NODES_IPS", seen=f"{master}, {hosts[0]}")
    name = hosts[rank] if hosts else None
    return NodeIdentity("dstack", rank, size, _host(env, "DSTACK_MASTER_NODE_IP"), None, None, hosts, name)


def from_runpod(env: Environment, flags: Flags) -> NodeIdentity | None:
    """A pod with global networking: RAY_WORKER=1 on the workers, HEAD_POD_ID on all, EXPECTED_WORKERS on the head."""
    if not env.get("RAY_WORKER") and not env.get("HEAD_POD_ID"):
        return None
    _refuse_beside(env, "RAY_WORKER" if env.get("RAY_WORKER") else "HEAD_POD_ID", ("GCP_WORKER", "GCP_HEAD_IP"))
    is_worker = _switch(env, "RAY_WORKER")
    pod, own = env.get("HEAD_POD_ID"), env.get("RUNPOD_POD_ID")
    if is_worker:
        _require(env, "HEAD_POD_ID", "RAY_WORKER=1")
    if pod and not re.fullmatch(r"[A-Za-z0-9-]+", pod):
        raise ConfigError("HEAD_POD_ID must be a pod's id alone", seen=pod, action=f"without .{_RUNPOD_DOMAIN}")
    if pod and own and (pod == own) == is_worker:
        role = "a worker (RAY_WORKER=1)" if is_worker else "the head (RAY_WORKER is not 1)"
        raise ConfigError(
            f"HEAD_POD_ID and RAY_WORKER must agree: this pod is {role}",
            seen=f"HEAD_POD_ID={pod} on pod {own}",
            action="set RAY_WORKER=1 on every pod but the one that HEAD_POD_ID names",
        )
    head = f"{pod}.{_RUNPOD_DOMAIN}" if pod else None
    debug = _switch(env, "DEBUG_RAY")
    size = _expected_nodes(env)
    return NodeIdentity("RunPod", None if is_worker else 0, size, head, name=own, wants_debugger=debug)


def from_gcp(env: Environment, flags: Flags) -> NodeIdentity | None:
    """A VM: GCP_WORKER=1 and GCP_HEAD_IP on the workers; the head has EXPECTED_WORKERS, or GCP_WORKER=0."""
    names = ("GCP_WORKER", "GCP_HEAD_IP", "EXPECTED_WORKERS")
    if not any(env.get(name) for name in names):
        return None
    is_worker = _switch(env, "GCP_WORKER")
    if is_worker:
        _require(env, "GCP_HEAD_IP", "GCP_WORKER=1")
    elif env.get("GCP_HEAD_IP") and not env.get("GCP_WORKER"):
        raise ConfigError(
            "GCP_HEAD_IP needs GCP_WORKER, too",
            seen=f"GCP_HEAD_IP={env['GCP_HEAD_IP']} and no GCP_WORKER",
            action="set GCP_WORKER=1 on the workers, GCP_WORKER=0 on the head",
        )
    head = _host(env, "GCP_HEAD_IP") if env.get("GCP_HEAD_IP") else None
    return NodeIdentity("GCP", None if is_worker else 0, _expected_nodes(env), head)


def from_torchrun(env: Environment, flags: Flags) -> NodeIdentity | None:
    """What launchers of torch.distributed set (Kubeflow, Vertex AI), with one process a machine."""
    present = [name for name in ("RANK", "WORLD_SIZE") if env.get(name)]
    if not present:
        return None
    rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE", present[0])
    for name, most in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        if (_number(env, name) or 0) > most:
            raise ConfigError(
                f"{name} must be {most}: one process a machine", seen=env[name], action="torchrun --nproc-per-node=1"
            )
    if rank > 0:
        _require(env, "MASTER_ADDR", f"RANK={rank}")
    port = _number(env, "MASTER_PORT")
    if port is not None and not 0 < port < 65536:
        raise ConfigError("MASTER_PORT must be between 1 and 65535", seen=port)
    head = _host(env, "MASTER_ADDR") if env.get("MASTER_ADDR") else None
    return NodeIdentity("torchrun", rank, size, head, port)


SOURCES: dict[str, Callable[[Environment, Flags], NodeIdentity | None]] = {
    "--rank, or --head on a worker": from_flags,
    "SLURM_PROCID under srun": from_slurm,
    "DSTACK_NODE_RANK": from_dstack,
    "RAY_WORKER and HEAD_POD_ID (RunPod)": from_runpod,
    "GCP_WORKER and GCP_HEAD_IP, or EXPECTED_WORKERS on the head (GCP)": from_gcp,
    "RANK and WORLD_SIZE (torchrun)": from_torchrun,
}
"""What to set -> who reads it; the first that finds something is believed."""


def first_host(nodelist: str) -> str:
    """The first name in Slurm's short form of a list.

    >>> first_host("gpu[007-9,12],login"), first_host("n1"), first_host("a[1-2]-ib")
    ('gpu007', 'n1', 'a1-ib')
    """
    match = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodelist)
    assert match is not None
    return "".join(part or "" for part in match.groups())


def _number(env: Environment, name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ConfigError(f"{name} must be a number", seen=text)
    return int(text)


def _require(env: Environment, name: str, because: str) -> str:
    if not env.get(name):
        raise ConfigError(f"{name} must be set together with {because}", seen="nothing", action=f"export {name}=...")
    return env[name]


def _rank_and_size(env: Environment, name: str, size_name: str, because: str) -> tuple[int, int]:
    size_text = _require(env, size_name, because)
    _require(env, name, because)
    rank, size = _number(env, name), _number(env, size_name)
    if rank is None or size is None or not rank < size:
        raise ConfigError(f"{name} must be below {size_name}, since it counts from 0", seen=f"{rank}, {size_text}")
    return rank, size


def _switch(env: Environment, name: str) -> bool:
    value = env.get(name) or "0"
    if value not in ("0", "1"):
        raise ConfigError(f"{name} must be 0 or 1", seen=value)
    return value == "1"


def _expected_nodes(env: Environment) -> int | None:
    workers = _number(env, "EXPECTED_WORKERS")
    return None if workers is None else workers + 1


def _host(env: Environment, name: str) -> str:
    value = env[name]
    if not _HOST.fullmatch(value):
        raise ConfigError(f"{name} must be a host's name or IPv4 address, without a port", seen=value)
    return value


def _refuse_beside(env: Environment, name: str, others: tuple[str, ...]) -> None:
    found = [other for other in others if env.get(other)]
    if found:
        raise ConfigError(
            f"{name} and {found[0]} belong to different clusters",
            seen=f"{', '.join([name, *found])} are set",
            action="unset the one or the other, or say it by flags: --rank, --nodes, --head",
        )
