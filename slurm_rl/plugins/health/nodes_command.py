"""`doctor --nodes`: list the nodes that are recorded as bad; clear one, or add one."""

import argparse
import contextlib
import getpass
import json
import sys
import time
from pathlib import Path

from slurm_rl.cli.find import find_run
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.runs.find import load_plan
from slurm_rl.launch.slurm.partitions import boot_times
from slurm_rl.plugins.health.evidence import Evidence, clear_node, find_bad, read_evidence
from slurm_rl.plugins.health.site import publish, read_site
from slurm_rl.run_dir.run_dir import RunDir, append_row, expect_writable

_DAY_S = 86400.0


def run_nodes(args: argparse.Namespace) -> int:
    """Run the command on a site folder, a run, or by default the newest run below ./runs and its site."""
    if args.rest:
        raise ConfigError("`doctor --nodes` takes no overrides", seen=" ".join(args.rest), action="leave them out")
    if args.clear and args.exclude:
        raise ConfigError("--clear and --exclude exclude each other", seen="both", action="use two commands")
    if args.exclude and not args.why:
        raise ConfigError("--exclude needs a reason", seen="no --why", action='--why "fan broken, ticket 12"')
    names = args.clear or args.exclude
    site, directory = str(expand_user(args.site_dir)) if args.site_dir else None, None
    if site is None or args.named is not None:
        directory = find_run([args.named] if args.named else [])
        site = site or load_plan(directory).preflight.site_dir
    places = " and ".join(filter(None, [str(directory.path) if directory else "", site]))
    if not names:
        return _list(site, directory, places, as_json=args.json)
    for name in names:
        _write(site, directory, name, args.why if args.exclude else None, args.days * _DAY_S)
    done = "cleared" if args.clear else "excluded"
    print(f"{done}: {', '.join(names)} in {places}; jobs read it at their next start", file=sys.stderr)
    return 0


def _list(site: str | None, directory: RunDir | None, places: str, *, as_json: bool) -> int:
    rows, now = read_site(site) + (read_evidence(directory) if directory else []), time.time()
    bad = find_bad(rows, now)
    with contextlib.suppress(SlurmRLError):  # a machine without Slurm
        bad = find_bad(rows, now, boot_times(list(bad)))
    if as_json:
        print(json.dumps({node: one.to_row() for node, one in sorted(bad.items())}, indent=2))
        return 0
    for node, one in sorted(bad.items()):
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until))
        end = f"until {until}" + (" or a boot" if one.strength == "hard" else "")
        where = f"{one.run}, attempt {one.attempt}" if one.attempt is not None else one.run or "operator"
        print(f"{node}  {one.check}: {one.value}  ({where}; {end})")
    print(f"{len(bad) or 'no'} bad nodes in {places}", file=sys.stderr)
    return 0


def _write(site: str | None, directory: RunDir | None, node: str, why: str | None, holds_s: float) -> None:
    now, user = time.time(), getpass.getuser()
    row = clear_node(node, now, user)
    if why is not None:
        evidence = Evidence.new(node, "operator", why, "hard", attempt=None, now=now, holds_s=holds_s)
        row = {**evidence.to_row(), "run": f"by {user}"}
    if site is not None:
        with expect_writable(Path(site), "and repeat the command", what="the site's memory of nodes"):
            publish(site, [row], strict=True)
    if directory is not None:
        with expect_writable(directory.nodes, "and repeat the command"):
            append_row(directory, directory.nodes, row)
