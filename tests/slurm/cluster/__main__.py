"""A cluster for trying things out by hand.

python -m tests.slurm.cluster shell --nodes 2      a shell with the cluster around it; gone at exit
python -m tests.slurm.cluster up --accounting      stays until `down`; prints what to export
python -m tests.slurm.cluster down [LETTER]        LETTER only when several are up
python -m tests.slurm.cluster on trixie COMMAND    COMMAND where Slurm is that of another Debian suite
python -m tests.slurm.cluster install              this machine's own Slurm, as the tests do by themselves
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.cluster.cluster import Cluster
from tests.slurm.cluster.packages import ClusterError, ensure_packages, is_possible, is_required
from tests.slurm.cluster.slots import Slot, claimed_slots, registry_lock
from tests.slurm.cluster.suites import ensure_suite, is_suite_possible, run_in
from tests.slurm.cluster.teardown import remove_stale, tear_down


def main() -> int:
    args = _parser().parse_args()
    try:
        return _VERBS[args.verb](args)
    except (ClusterError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster", description="A real Slurm on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (("up", "bring up a cluster that stays"), ("shell", "a shell inside a cluster, gone at exit")):
        shape = verbs.add_parser(verb, help=text)
        shape.add_argument("--nodes", type=int, default=4)
        shape.add_argument("--gpus", type=int, default=2, help="fake GPUs a node")
        shape.add_argument("--accounting", action="store_true", help="with slurmdbd, so that sacct works")
        shape.add_argument("--share", type=Path, action="append", default=[], help="folder in /tmp every node sees")
    down = verbs.add_parser("down", help="end a cluster that `up` made")
    down.add_argument("letter", nargs="?", help="first letter of its node names")
    on = verbs.add_parser("on", help="run a command where Slurm is another Debian suite's")
    on.add_argument("suite", help="trixie, sid, ...")
    on.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("install", help="install Debian's Slurm packages")
    return parser


def _up(args: argparse.Namespace) -> int:
    root = Path(tempfile.mkdtemp(prefix="slurm-rl-", dir="/tmp"))
    cluster = Cluster(
        root,
        num_nodes=args.nodes,
        gpus=args.gpus,
        accounting=args.accounting,
        shared=args.share,
        keep=args.verb == "up",
    )
    cluster.up()
    if args.verb == "up":
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")
        print(f"# nodes {cluster.nodes[0]}-{cluster.nodes[-1]}; end it: python -m tests.slurm.cluster down")
        return 0
    with_cluster = subprocess.run([os.environ.get("SHELL", "sh")], env=cluster.env)
    cluster.down()
    shutil.rmtree(root)
    return with_cluster.returncode


def _down(args: argparse.Namespace) -> int:
    with registry_lock():
        remove_stale()
        kept = [slot for slot in claimed_slots() if slot.is_kept]
        chosen = _choose(kept, args.letter)
        root = chosen.root
        tear_down(chosen)
    if root is not None:
        shutil.rmtree(root)
    return 0


def _run_on_suite(args: argparse.Namespace) -> int:
    """The command's exit code. Where it cannot run: 0, as the tests are skipped then, or 1 where they must not be."""
    try:
        if reason := is_suite_possible(args.suite):
            raise ClusterError(reason)
        root = ensure_suite(args.suite)
    except ClusterError as error:
        print(f"no Slurm of {args.suite} here, so nothing ran: {error}", file=sys.stderr)
        return int(is_required())
    return run_in(root, args.command)


def _install(args: argparse.Namespace) -> int:
    if reason := is_possible():
        print(f"no test Slurm here: {reason}", file=sys.stderr)
        return int(is_required())
    ensure_packages(accounting=True)
    return 0


def _choose(kept: list[Slot], letter: str | None) -> Slot:
    chosen = [slot for slot in kept if letter in (None, slot.letter)]
    if len(chosen) != 1:
        up = ", ".join(slot.letter for slot in kept) or "none"
        raise ClusterError(f"name one cluster that `up` made: {up}")
    return chosen[0]


_VERBS = {"up": _up, "shell": _up, "down": _down, "on": _run_on_suite, "install": _install}

if __name__ == "__main__":
    sys.exit(main())
