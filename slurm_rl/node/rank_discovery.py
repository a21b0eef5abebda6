"""Find out which node of a run this machine is, from flags or environment variables. Standard library only.

Each launcher or cloud is one function and one row in SOURCES. An empty variable counts as not set. Invalid or
contradictory values raise a ConfigError that names the variable.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import HOSTS_VARIABLE, NODE_VARIABLE

Environment = Mapping[str, str]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_RUNPOD_DOMAIN = "runpod.internal"


@dataclass(frozen=True)
class Flags:
    """Flags of the command line; None where absent."""

    rank: int | None = None
    num_nodes: int | None = None
    head: str | None = None
    port: int | None = None
    job_key: str | None = None


@dataclass(frozen=True)
class NodeIdentity:
    """Place of this machine in the run, as far as one source knows it."""

    source: str
    """flags, Slurm, dstack, RunPod, GCP or torchrun."""
    rank: int | None
    """0 is the head; None for a worker that gets its rank from the head."""
    num_nodes: int | None = None
    """Number of nodes including the head; None if the config decides."""
    head: str | None = None
    """Name or address of the head."""
    port: int | None = None
    """Port of the head; None if the config decides."""
    job_key: str | None = None
    """Name of the job on all of its machines."""
    hosts: tuple[str, ...] = ()
    """Names or addresses of all nodes by rank, if they are known in advance."""
    name: str | None = None
    """The launcher's name for this machine; None: its host name."""
    wants_debugger: bool = False
    """RunPod's DEBUG_RAY."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True)
class NodeRole:
    """Place of a node in an attempt."""

    rank: int
    num_nodes: int
    job_key: str
    """Name of the job; ports and temp dirs derive from it."""
    hosts: tuple[str, ...] = ()
    """Names or addresses by rank; empty on a single machine."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def discover(env: Environment, flags: Flags) -> NodeIdentity:
    """Return the answer of the first source that applies; single flags override its values.

    >>> discover({"RAY_WORKER": "1", "HEAD_POD_ID": "abc"}, Flags(port=7000)).head
    'abc.runpod.internal'

    Raises:
        ConfigError: no source applies, or values are invalid.
    """
    for source in SOURCES.values():
        found = source(env, flags)
        if found is not None:
            num_nodes = found.num_nodes if flags.num_nodes is None else flags.num_nodes
            job_key = flags.job_key or found.job_key
            return replace(found, num_nodes=num_nodes, port=flags.port or found.port, job_key=job_key)
    raise ConfigError(
        "a machine must know its rank in the run",
        seen="none of the variables, and no flag",
        action="set one of: " + "; ".join(SOURCES),
    )


def discover_role(env: Environment, flags: Flags) -> NodeRole:
    """Return the role of a node agent. Raises ConfigError if it is incomplete."""
    found = discover(env, flags)
    if found.rank is None or found.num_nodes is None or found.job_key is None:
        raise ConfigError(
            "a node agent needs its rank, the number of nodes and the job",
            seen=found.source,
            action="start it with `python -m slurm_rl`: submit, run-in-job or join",
        )
    return NodeRole(found.rank, found.num_nodes, found.job_key, found.hosts)


def from_flags(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read --rank, --nodes and --head; a worker without --rank gets one from the head."""
    if flags.rank is None and flags.head is None:
        return None
    if flags.rank is not None and not 0 <= flags.rank < (flags.num_nodes or flags.rank + 1):
        raise ConfigError("--rank must be 0 (the head) or above, and below --nodes", seen=flags.rank)
    return NodeIdentity("flags", flags.rank, flags.num_nodes, flags.head, flags.port, flags.job_key, _hosts(env))


def from_slurm(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read a task of srun; its rank is the place of its node in the controller's list, if there is one."""
    if "SLURM_PROCID" not in env or "SLURM_JOB_ID" not in env:
        return None
    rank, size = _rank_and_size(env, "SLURM_PROCID", "SLURM_NTASKS")
    if _number(env, "SLURM_LOCALID"):
        action = "srun --ntasks-per-node=1 ..."
        raise ConfigError("SLURM_LOCALID must be 0: one task per node", seen=env["SLURM_LOCALID"], action=action)
    hosts, name = _hosts(env), env.get(NODE_VARIABLE) or None
    if hosts and name is not None:
        if name not in hosts:
            seen = f"{name}; {HOSTS_VARIABLE}={','.join(hosts)}"
            raise ConfigError(f"{NODE_VARIABLE} must be one of the nodes that the controller chose", seen=seen)
        rank = hosts.index(name)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    head = hosts[0] if hosts else expand_hosts(nodes)[0] if nodes else None
    return NodeIdentity("Slurm", rank, size, head, None, env["SLURM_JOB_ID"], hosts, name)


def from_dstack(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read a node of a dstack task."""
    if not any(env.get(name) for name in ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_MASTER_NODE_IP")):
        return None
    rank, size = _rank_and_size(env, "DSTACK_NODE_RANK", "DSTACK_NODES_NUM")
    head = _host(env, "DSTACK_MASTER_NODE_IP", "DSTACK_NODE_RANK")
    hosts = tuple(env.get("DSTACK_NODES_IPS", "").split())
    if hosts and (len(hosts) != size or hosts[0] != head):
        rule = "DSTACK_NODES_IPS must hold DSTACK_NODES_NUM addresses, DSTACK_MASTER_NODE_IP first"
        raise ConfigError(rule, seen=f"{', '.join(hosts)}; {size} nodes, {head}")
    return NodeIdentity("dstack", rank, size, head, None, None, hosts, hosts[rank] if hosts else None)


def from_runpod(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read a pod with global networking: RAY_WORKER=1 on workers, HEAD_POD_ID on all, EXPECTED_WORKERS on the head."""
    if not env.get("RAY_WORKER") and not env.get("HEAD_POD_ID"):
        return None
    if found := [name for name in ("GCP_WORKER", "GCP_HEAD_IP") if env.get(name)]:
        action = "unset one of them, or use --rank, --nodes and --head"
        raise ConfigError(f"RAY_WORKER and {found[0]} belong to different clusters", seen="both", action=action)
    is_worker = _switch(env, "RAY_WORKER")
    pod, own = env.get("HEAD_POD_ID"), env.get("RUNPOD_POD_ID")
    if is_worker:
        _require(env, "HEAD_POD_ID", "RAY_WORKER=1")
    if pod and not re.fullmatch(r"[A-Za-z0-9-]+", pod):
        raise ConfigError("HEAD_POD_ID must be only the id of a pod", seen=pod, action=f"drop .{_RUNPOD_DOMAIN}")
    if pod and own and (pod == own) == is_worker:
        raise ConfigError(
            "HEAD_POD_ID and RAY_WORKER must agree",
            seen=f"HEAD_POD_ID={pod} and RAY_WORKER={int(is_worker)} on pod {own}",
            action="set RAY_WORKER=1 on every pod except the one that HEAD_POD_ID names",
        )
    head, debug = f"{pod}.{_RUNPOD_DOMAIN}" if pod else None, _switch(env, "DEBUG_RAY")
    rank = None if is_worker else 0
    return NodeIdentity("RunPod", rank, _expected_nodes(env), head, name=own, wants_debugger=debug)


def from_gcp(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read a VM: GCP_WORKER=1 and GCP_HEAD_IP on workers; EXPECTED_WORKERS or GCP_WORKER=0 on the head."""
    if not any(env.get(name) for name in ("GCP_WORKER", "GCP_HEAD_IP", "EXPECTED_WORKERS")):
        return None
    is_worker = _switch(env, "GCP_WORKER")
    if env.get("GCP_HEAD_IP") and not env.get("GCP_WORKER"):
        action = "set GCP_WORKER=1 on the workers, GCP_WORKER=0 on the head"
        raise ConfigError("GCP_HEAD_IP needs GCP_WORKER", seen="no GCP_WORKER", action=action)
    head = _host(env, "GCP_HEAD_IP", "GCP_WORKER=1") if is_worker or env.get("GCP_HEAD_IP") else None
    return NodeIdentity("GCP", None if is_worker else 0, _expected_nodes(env), head)


def from_torchrun(env: Environment, flags: Flags) -> NodeIdentity | None:
    """Read the variables of torch.distributed launchers (Kubeflow, Vertex AI) with one process per machine."""
    if not env.get("RANK") and not env.get("WORLD_SIZE"):
        return None
    rank, size = _rank_and_size(env, "RANK", "WORLD_SIZE")
    for name, most in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)):
        if (_number(env, name) or 0) > most:
            action = "torchrun --nproc-per-node=1"
            raise ConfigError(f"{name} must be {most}: one process per machine", seen=env[name], action=action)
    head = _host(env, "MASTER_ADDR", f"RANK={rank}") if rank > 0 or env.get("MASTER_ADDR") else None
    port = _number(env, "MASTER_PORT")
    if port is not None and not 0 < port < 65536:
        raise ConfigError("MASTER_PORT must be between 1 and 65535", seen=port)
    return NodeIdentity("torchrun", rank, size, head, port)


SOURCES: dict[str, Callable[[Environment, Flags], NodeIdentity | None]] = {
    "--rank, or --head on a worker": from_flags,
    "SLURM_PROCID under srun": from_slurm,
    "DSTACK_NODE_RANK": from_dstack,
    "RAY_WORKER and HEAD_POD_ID (RunPod)": from_runpod,
    "GCP_WORKER and GCP_HEAD_IP, or EXPECTED_WORKERS on the head (GCP)": from_gcp,
    "RANK and WORLD_SIZE (torchrun)": from_torchrun,
}
"""Variables or flags to set -> source, in order of precedence."""


def expand_hosts(short: str) -> list[str]:
    """Expand a compressed node list of Slurm without a command, which a container lacks.

    >>> expand_hosts("n[08-10,12],10.140.71.103,r[1-2]s[1-2]")
    ['n08', 'n09', 'n10', 'n12', '10.140.71.103', 'r1s1', 'r1s2', 'r2s1', 'r2s2']
    """
    return [host for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", short) for host in _unfold(part)]


def _unfold(part: str) -> list[str]:
    found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if found is None:
        return [part]
    numbers = [number for piece in found[2].split(",") for number in _count(piece)]
    return [f"{found[1]}{number}{rest}" for number in numbers for rest in _unfold(found[3])]


def _count(piece: str) -> list[str]:
    first, _, last = piece.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]


def _hosts(env: Environment) -> tuple[str, ...]:
    return tuple(filter(None, env.get(HOSTS_VARIABLE, "").split(",")))


def _number(env: Environment, name: str) -> int | None:
    text = env.get(name)
    if text and not re.fullmatch(r"[0-9]{1,6}", text):
        raise ConfigError(f"{name} must be a number", seen=text)
    return int(text) if text else None


def _require(env: Environment, name: str, because: str) -> str:
    if not env.get(name):
        raise ConfigError(f"{name} must be set together with {because}", seen="nothing", action=f"export {name}=...")
    return env[name]


def _rank_and_size(env: Environment, name: str, size_name: str) -> tuple[int, int]:
    _require(env, size_name, name)
    _require(env, name, size_name)
    rank, size = _number(env, name), _number(env, size_name)
    if rank is None or size is None or not rank < size:
        raise ConfigError(f"{name} must be below {size_name}, since it counts from 0", seen=f"{rank}, {size}")
    return rank, size


def _switch(env: Environment, name: str) -> bool:
    value = env.get(name) or "0"
    if value not in ("0", "1"):
        raise ConfigError(f"{name} must be 0 or 1", seen=value)
    return value == "1"


def _expected_nodes(env: Environment) -> int | None:
    workers = _number(env, "EXPECTED_WORKERS")
    return None if workers is None else workers + 1


def _host(env: Environment, name: str, because: str) -> str:
    value = _require(env, name, because)
    if not _HOST.fullmatch(value):
        raise ConfigError(f"{name} must be a host name or IPv4 address without a port", seen=value)
    return value
