"""Accuracy that the tiny tasks of examples/ reach as shipped, by seed, with the commands of their READMEs.

    python -m benchmarks.learning --tasks guessing_game calculator mixture --seeds 0 1 2

Prints a markdown table: share of right sampled replies to held-out rows before the first GRPO step and after the last,
and minutes of all commands of the README, including data and first stages.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.run_dir.jsonl import read_rows
from tests.examples.kit import EXAMPLES, ROOT, read_commands

TASKS = ("guessing_game", "calculator", "mixture")
QUIET = ("logging.wandb.mode=disabled", "ray.dashboard=false")


@dataclass(frozen=True)
class Learned:
    """Result of one README."""

    before: float
    """Share of right sampled replies to held-out rows."""
    after: float
    minutes: float


def run_page(task: str, seed: int, folder: Path) -> Learned:
    """Run the commands that produce something in `folder`; return the result of the last one."""
    (folder / "examples").symlink_to(EXAMPLES)
    began, run_dir = time.monotonic(), folder
    for words in read_commands(task):
        is_run = any(word.startswith("+exp=") for word in words) and "plan" not in words
        if words[1:3] == ["-m", "slurm_rl"] and not is_run:
            continue
        if is_run:
            [run_dir] = [folder / word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")]
        more = [f"seed={seed}", *QUIET] if is_run else []
        done = subprocess.run(
            [sys.executable, *words[1:], *more],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} must end with 0; got {done.returncode}\n{done.stdout[-3000:]}")
    minutes = (time.monotonic() - began) / 60
    evaluated = [row["accuracy/sampled"] for row in read_rows(run_dir / "metrics.jsonl") if row["stage"] == "eval"]
    return Learned(evaluated[0], evaluated[-1], minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    print("| task | seed | before | after | points | minutes |\n|---|---|---|---|---|---|", flush=True)
    for task in args.tasks:
        for seed in args.seeds:
            with tempfile.TemporaryDirectory(prefix="slrl-", dir="/tmp") as folder:
                it = run_page(task, seed, Path(folder))
            points = f"{100 * (it.after - it.before):+.1f}"
            shares = f"{it.before:.1%} | {it.after:.1%}".replace("%", " %")
            print(f"| {task} | {seed} | {shares} | {points} | {it.minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
