"""`nodes`: which nodes are remembered as bad, and why; an operator clears one, or adds one."""

from __future__ import annotations

import contextlib
import getpass
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.cli.find import find_run
from slurm_rl.cli.words import choose, read_words
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launchers.slurm.partitions import boot_times
from slurm_rl.plugins.health.evidence import Evidence, clear_node, find_bad, read_evidence
from slurm_rl.plugins.health.site import publish, read_site
from slurm_rl.run_dir import RunDir, append_row, expect_writable
from slurm_rl.runs.find import load_plan

_ACTIONS = ("list", "clear", "add")
_DAY_S = 86400.0


@dataclass(frozen=True)
class Places:
    """Where nodes are remembered."""

    site: str | None
    run: RunDir | None

    def read(self) -> list[dict[str, Any]]:
        return read_site(self.site) + (read_evidence(self.run) if self.run else [])

    def __str__(self) -> str:
        return " and ".join(filter(None, [str(self.run.path) if self.run else "", self.site]))


def run(words: list[str]) -> int:
    told = read_words("nodes", words)
    action, *names = told.rest or ["list"]
    choose("the first word", action, _ACTIONS)
    flags = told.flags
    if (action == "list") == bool(names):
        raise ConfigError(
            f"`nodes {action}` takes " + ("no names" if action == "list" else "names of nodes"),
            seen=" ".join(names) or "none",
            action="python -m slurm_rl nodes clear n17",
        )
    if action == "add" and not flags.why:
        raise ConfigError("`nodes add` needs a reason", action='--why "fan broken, ticket 12"')
    places = _find_places(flags.site_dir, flags.run)
    if action == "list":
        return _list(places, as_json=flags.json)
    for name in names:
        _write(places, name, flags.why if action == "add" else None, flags.days * _DAY_S)
    done = "cleared" if action == "clear" else "kept out"
    print(
        f"{done}: {', '.join(names)} in {places}; queued and running jobs hear of it when they start", file=sys.stderr
    )
    return 0


def _find_places(site_dir: str | None, run_dir: str | None) -> Places:
    """Those that are named; else the newest run below ./runs and the site that it knows."""
    if site_dir is not None and run_dir is None:
        return Places(str(expand_user(site_dir)), None)
    found = find_run([run_dir] if run_dir else [])
    site = str(expand_user(site_dir)) if site_dir else load_plan(found).preflight.site_dir
    return Places(site, found)


def _list(places: Places, *, as_json: bool) -> int:
    rows, now = places.read(), time.time()
    bad = find_bad(rows, now)
    with contextlib.suppress(SlurmRLError):  # a machine without Slurm
        bad = find_bad(rows, now, boot_times(list(bad)))
    if as_json:
        print(json.dumps({node: one.to_row() for node, one in sorted(bad.items())}, indent=2))
        return 0
    for node, one in sorted(bad.items()):
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.until))
        where = f"{one.run}, attempt {one.attempt}" if one.attempt is not None else one.run or "operator"
        print(
            f"{node}  {one.check}: {one.value}  ({where}; until {until}"
            + (" or a boot)" if one.strength == "hard" else ")")
        )
    print(f"{len(bad) or 'no'} bad nodes in {places}", file=sys.stderr)
    return 0


def _write(places: Places, node: str, why: str | None, holds_s: float) -> None:
    now, who = time.time(), getpass.getuser()
    row = clear_node(node, now, who)
    if why is not None:
        evidence = Evidence.new(node, "operator", why, "hard", attempt=None, now=now, holds_s=holds_s)
        row = {**evidence.to_row(), "run": f"by {who}"}
    if places.site is not None:
        with expect_writable(Path(places.site), "and say it again", what="the site's memory of nodes"):
            publish(places.site, [row], strict=True)
    if places.run is not None:
        with expect_writable(places.run.nodes, "and say it again"):
            append_row(places.run, places.run.nodes, row)
