"""Run one probe: `python -m slurm_rl.plugins.health.doctor.probe <row> <folder> <rank>`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from slurm_rl.functions.load import load_function
from slurm_rl.plugins.health.doctor.finding import load_question
from slurm_rl.plugins.health.doctor.probes import PROBES


def main(name: str, folder: str, rank: str) -> None:
    # Libraries print; only findings go where findings are read.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for finding in load_function(PROBES[name].look)(load_question(Path(folder), int(rank))):
        print(json.dumps(asdict(finding)), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
