"""`logs`: the logs of a run's newest attempt, as they are or as they grow."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from slurm_rl.cli.common import find_run
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir import RunDir
from slurm_rl.slurm.jobs import is_job_alive


def run(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m slurm_rl logs")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as the log grows, until the run ends")
    parser.add_argument("--who", default="driver", help="driver, node-<rank> or ray-<rank>")
    parser.add_argument("run", nargs="*")
    args = parser.parse_args(words)
    directory = find_run(args.run)
    if args.follow:
        return _follow(directory, args.who)
    sys.stdout.write(_log_path(directory, args.who).read_text(encoding="utf-8", errors="replace"))
    return 0


def _log_path(run: RunDir, who: str) -> Path:
    folder = run.attempts / "latest" / "logs"
    path = folder / f"{who}.log"
    if not path.is_file():
        found = ", ".join(sorted(p.stem for p in folder.glob("*.log"))) or "none yet"
        raise ConfigError("--who must name a log of the newest attempt", seen=who, action=f"choose one of: {found}")
    return path


def _follow(run: RunDir, who: str) -> int:
    offset, shown = 0, None
    while True:
        alive = is_job_alive(run)
        folder = (run.attempts / "latest").resolve()
        if folder != shown:
            # A restarted job writes the next attempt's log.
            offset, shown = 0, folder
        path = folder / "logs" / f"{who}.log"
        if path.is_file():
            with path.open("rb") as file:
                file.seek(offset)
                sys.stdout.write(file.read().decode(errors="replace"))
                offset = file.tell()
            sys.stdout.flush()
        if not alive:
            return 0
        time.sleep(0.5)
