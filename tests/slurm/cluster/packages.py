"""Requirements of a cluster: root, namespaces and Debian's Slurm packages."""

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "tini": "tini",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
ACCOUNTING_PROGRAMS = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
POLICY = Path("/usr/sbin/policy-rc.d")


class ClusterError(Exception):
    """The test cluster failed to start or to carry out a request."""


def is_possible() -> str | None:
    """Return None if this machine can run a cluster, else the reason in one line. Changes nothing."""
    if os.geteuid() != 0:
        return "root is needed (namespaces, bridges, device cgroups)"
    probe = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "ip", "link", "add", "br0"]
    absent = missing(accounting=False)
    if "iproute2" not in absent:
        done = subprocess.run([*probe, "type", "bridge"], capture_output=True, text=True)
        if done.returncode:
            return f"namespaces and bridges are needed: {done.stderr.strip()}"
    if absent and shutil.which("apt-get") is None:
        return f"the packages {' '.join(absent)} are needed, and there is no apt-get to install them"
    return None


def is_required() -> bool:
    """Return whether this machine must have a test Slurm: tests that need it fail instead of being skipped."""
    return os.environ.get("SLURM_RL_REQUIRE_SLURM") == "1"


def slurm_version() -> str | None:
    """Return the version of the Slurm on PATH, for example `22.05.8`; None without Slurm."""
    if shutil.which("slurmd") is None:
        return None
    # Debian prints "slurm-wlm 22.05.8", SchedMD "slurm 25.11.7".
    return subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout.strip().rpartition(" ")[2] or None


def missing(*, accounting: bool) -> list[str]:
    """Return the packages with programs missing on PATH."""
    required = PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    return sorted({package for program, package in required.items() if shutil.which(program) is None})


def ensure_packages(*, accounting: bool) -> None:
    """Install missing packages; download nothing if none is missing."""
    packages = missing(accounting=accounting)
    if not packages:
        return
    keep_services_stopped = not POLICY.exists()
    if keep_services_stopped:
        # The packages would start their daemons; the cluster starts each with its own config.
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        _apt("update", "-qq")
        _apt("install", "-y", "-qq", "--no-install-recommends", *packages)
    finally:
        if keep_services_stopped:
            POLICY.unlink()
    if absent := missing(accounting=accounting):
        raise ClusterError(f"apt-get installed, but these packages' programs are still not on PATH: {absent}")


def _apt(*args: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", *args], env=env, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"apt-get {' '.join(args)} failed: {done.stderr.strip()[-500:]}")
