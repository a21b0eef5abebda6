"""Configuration files of the cluster."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster.cgroups import has_cgroup_v1
from tests.slurm.cluster.slots import Slot


@dataclass(frozen=True)
class Shape:
    """Size of the cluster."""

    num_nodes: int
    cpus: int
    mem_mb: int
    gpus: int
    accounting: bool


def write_config(root: Path, slot: Slot, shape: Shape, settings: Mapping[str, str]) -> None:
    """Write slurm.conf and the files it refers to; `settings` replace or add keys of slurm.conf."""
    (root / "slurm.conf").write_text(render_slurm_conf(root, slot, shape, settings))
    (root / "gres.conf").write_text(
        f"Name=gpu Type=fake File={root}/dev/gpu[0-{shape.gpus - 1}]\n" if shape.gpus else ""
    )
    (root / "cgroup.conf").write_text(
        "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainDevices=yes\nConstrainRAMSpace=yes\nConstrainCores=no\n"
    )
    (root / "plugstack.conf").touch()
    names = [(slot.ip(index), slot.node(index)) for index in range(1, shape.num_nodes + 1)]
    hosts = [("127.0.0.1", "localhost"), (slot.controller_ip, _hostname()), *names]
    # No server is there, unless a test starts one (test_offline.py).
    (root / "resolv.conf").write_text(f"nameserver {slot.controller_ip}\n")
    (root / "hosts").write_text("".join(f"{ip} {name}\n" for ip, name in hosts))


def render_slurm_conf(root: Path, slot: Slot, shape: Shape, settings: Mapping[str, str]) -> str:
    keys = {**_daemon_keys(root, slot), **_behaviour_keys(shape), **_accounting_keys(root, slot, shape), **settings}
    lines = [f"{key}={value}" for key, value in keys.items()]
    gres = f" Gres=gpu:fake:{shape.gpus}" if shape.gpus else ""
    for index in range(1, shape.num_nodes + 1):
        name = slot.node(index)
        # Mixed hardware: the first half of the nodes has another feature than the second.
        feature = "old" if index <= shape.num_nodes // 2 else "new"
        lines.append(
            f"NodeName={name} NodeAddr={slot.ip(index)} NodeHostname={name} CPUs={shape.cpus} "
            f"RealMemory={shape.mem_mb}{gres} Feature={feature} State=UNKNOWN"
        )
    everywhere = "Nodes=ALL State=UP MaxTime=INFINITE"
    lines.append(f"PartitionName=main {everywhere} Default=YES PriorityTier=1 GraceTime=10")
    lines.append(f"PartitionName=high {everywhere} PriorityTier=10 PreemptMode=OFF")
    # Preemption cancels the jobs of this one.
    lines.append(f"PartitionName=cancelled {everywhere} PriorityTier=1 GraceTime=10 PreemptMode=CANCEL")
    return "\n".join(lines) + "\n"


def _daemon_keys(root: Path, slot: Slot) -> dict[str, str]:
    return {
        "ClusterName": f"test{slot.letter}",
        "SlurmctldHost": f"{_hostname()}({slot.controller_ip})",
        "SlurmctldPort": str(slot.controller_port),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        # A requeued job cannot restart before the credential of its last start expires (default 120 s).
        "AuthInfo": f"socket={root}/munge/socket,cred_expire=5",
        "CredType": "cred/munge",
        "MpiDefault": "none",
        "StateSaveLocation": f"{root}/state",
        "SlurmdSpoolDir": f"{root}/spool/%n",
        "SlurmctldPidFile": f"{root}/state/slurmctld.pid",
        "SlurmdPidFile": f"{root}/state/slurmd-%n.pid",
        "SlurmctldLogFile": f"{root}/log/slurmctld.log",
        "SlurmdLogFile": f"{root}/log/slurmd-%n.log",
        "PlugStackConfig": f"{root}/plugstack.conf",
        # The nodes read slurm.conf when they boot; the controller's file may have changed since.
        "DebugFlags": "NO_CONF_HASH",
    }


def _behaviour_keys(shape: Shape) -> dict[str, str]:
    cgroups = has_cgroup_v1()
    return {
        # Without cgroups, a daemonised process (Ray's are) outlives its job.
        "ProctrackType": "proctrack/cgroup" if cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup" if cgroups else "task/none",
        "JobAcctGatherType": "jobacct_gather/cgroup" if cgroups else "jobacct_gather/linux",
        "JobAcctGatherFrequency": "5",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # A job that requests all CPUs and no memory gets half a node, so that two such jobs fit on one node.
        "DefMemPerCPU": str(max(1, shape.mem_mb // (2 * shape.cpus))),
        "GresTypes": "gpu",
        # The nodes may claim more CPUs and memory than this machine has.
        "SlurmdParameters": "config_overrides",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        # Preemption sends the signal of --signal. Later Slurm versions accept this old spelling too.
        "SlurmctldParameters": "preempt_send_user_signal",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": "10",
        "InactiveLimit": "0",
        # Half of Slurm's default; a shorter wait would kill a node's agent during cleanup on a busy machine.
        "KillWait": "15",
        "MinJobAge": "300",
        "MessageTimeout": "10",
        "TCPTimeout": "2",
        "UnkillableStepTimeout": "10",
    }


def _accounting_keys(root: Path, slot: Slot, shape: Shape) -> dict[str, str]:
    if not shape.accounting:
        return {"AccountingStorageType": "accounting_storage/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(slot.accounting_port),
        # For slurmdbd, this key (not AuthInfo) names munge's socket.
        "AccountingStoragePass": f"{root}/munge/socket",
        "AccountingStorageTRES": "gres/gpu",
        # Without this, sbatch silently accepts an account that does not exist.
        "AccountingStorageEnforce": "associations",
    }


def make_gpus(root: Path, gpus: int) -> None:
    """Make fake GPUs: device files with a major number reserved for experiments."""
    (root / "dev").mkdir()
    for index in range(gpus):
        # One minor number per GPU: Slurm's device cgroup filters by number.
        os.mknod(root / "dev" / f"gpu{index}", 0o20666, os.makedev(240, index))


def _hostname() -> str:
    return socket.gethostname().split(".")[0]
