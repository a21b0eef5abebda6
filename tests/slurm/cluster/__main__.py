"""Slurm for tests.

python -m tests.slurm.cluster on trixie COMMAND    COMMAND where Slurm is that of another Debian suite
python -m tests.slurm.cluster install              this machine's own Slurm, as the tests do by themselves
"""

from __future__ import annotations

import argparse
import sys

from tests.slurm.cluster.packages import ClusterError, ensure_packages, is_possible, is_required
from tests.slurm.cluster.suites import ensure_suite, is_suite_possible, run_in


def main() -> int:
    args = _parser().parse_args()
    try:
        return _run_on_suite(args) if args.verb == "on" else _install()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.cluster", description="A real Slurm on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    on = verbs.add_parser("on", help="run a command where Slurm is another Debian suite's")
    on.add_argument("suite", help="trixie, sid, ...")
    on.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("install", help="install Debian's Slurm packages")
    return parser


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


def _install() -> int:
    if reason := is_possible():
        print(f"no test Slurm here: {reason}", file=sys.stderr)
        return int(is_required())
    ensure_packages(accounting=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
