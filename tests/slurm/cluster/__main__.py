"""Start a Slurm cluster on this machine, or run the tests on another Slurm version.

python -m tests.slurm.cluster shell --nodes 2      open a shell with sbatch, srun and squeue; the cluster ends with it
python -m tests.slurm.cluster on trixie COMMAND    run COMMAND with the Slurm of another Debian suite
python -m tests.slurm.cluster install              install this machine's Slurm packages
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.packages import ClusterError, ensure_packages, is_possible, is_required
from tests.slurm.cluster.suites import ensure_suite, is_suite_possible, run_in


def main() -> int:
    args = _parser().parse_args()
    try:
        return {"shell": _shell, "on": _run_on_suite, "install": _install}[args.verb](args)
    except (ClusterError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster", description="A real Slurm on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    shell = verbs.add_parser("shell", help="a shell inside a cluster that ends with it")
    shell.add_argument("--nodes", type=int, default=4)
    shell.add_argument("--gpus", type=int, default=2, help="fake GPUs per node")
    shell.add_argument("--accounting", action="store_true", help="with slurmdbd, so that sacct works")
    shell.add_argument("--share", type=Path, action="append", default=[], help="folder in /tmp that every node sees")
    on = verbs.add_parser("on", help="run a command where Slurm is another Debian suite's")
    on.add_argument("suite", help="trixie, sid, ...")
    on.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("install", help="install Debian's Slurm packages")
    return parser


def _shell(args: argparse.Namespace) -> int:
    root = Path(tempfile.mkdtemp(prefix="slurm-rl-", dir="/tmp"))
    try:
        with Cluster(
            root, num_nodes=args.nodes, gpus=args.gpus, accounting=args.accounting, shared=args.share
        ) as cluster:
            return subprocess.run([os.environ.get("SHELL", "sh")], env=cluster.env).returncode
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _run_on_suite(args: argparse.Namespace) -> int:
    """Return the exit code of the command; if it cannot run, return 0, or 1 if the machine must have a test Slurm."""
    try:
        if reason := is_suite_possible(args.suite):
            raise ClusterError(reason)
        root = ensure_suite(args.suite)
    except ClusterError as error:
        print(f"no Slurm of {args.suite} here, so nothing ran: {error}", file=sys.stderr)
        return int(is_required())
    return run_in(root, args.command)


def _install(_: argparse.Namespace) -> int:
    if reason := is_possible():
        print(f"no test Slurm here: {reason}", file=sys.stderr)
        return int(is_required())
    ensure_packages(accounting=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
