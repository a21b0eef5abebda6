"""Share of a slow reward that sampling ahead hides, from whole runs with and without it.

    python -m benchmarks.reward_overlap --steps 8

The reward sleeps 200 ms per completion (as a request to a service would) in 16 processes: 0.8 s per step of 64
completions, less than the rest of a step, so it can be hidden completely. Four runs with the same model, prompts,
lengths and seed: with and without the sleep, at k=0 and at k=1. Hidden is the share of the sleep's cost per step at k=0
that is saved at k=1.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.tiny_models import TinyModel

SLEEP_S = 0.2
WORKERS = 16


def fast(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Return 0 or 1 by the characters; groups contain both, so every step trains on all of them."""
    return [float(sum(map(ord, query)) % 2) for query in queries]


def slow(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Sleep, then score; called with one completion at a time."""
    time.sleep(SLEEP_S)
    return fast(queries, prompts, labels)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/reward_overlap"))
    args = parser.parse_args()
    print("| | fast reward, s/step | 200 ms a completion, s/step | it adds |\n|---|---|---|---|")
    added = []
    for staleness in (0, 1):
        found = [measure(args, staleness, reward) for reward in ("fast", "slow")]
        added.append(found[1] - found[0])
        print(f"| k={staleness} | {found[0]:.2f} | {found[1]:.2f} | {added[-1]:.2f} |", flush=True)
    print(f"hidden by k=1: {1 - added[1] / added[0]:.0%}")
    return 0


def measure(args: argparse.Namespace, staleness: int, reward: str) -> float:
    """Return median seconds of a step, without the first ones, in which sampling ahead starts up."""
    run = args.out / f"k{staleness}-{reward}-{int(time.time())}"
    overrides = [
        "+exp=demo", f"run_dir={run}", f"trainer.num_steps={args.steps}", f"trainer.prompts_per_step={args.prompts}",
        f"algorithm.group_size={args.group_size}", f"rollout.max_off_policy_steps={staleness}", "warmup.num_steps=2",
        f"reward.function={Path(__file__).resolve()}:{reward}", f"reward.num_workers={WORKERS}",
        "checkpoint.interval=1000000", "eval.greedy=false", "data.num_eval=8",
        # Large enough that training takes as long as the reward. A step needs the batch requested one step ago, so k=1
        # hides the time that fits into one step's training, and half of the time beyond.
        TinyModel(hidden_size=512, num_layers=8).word,
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "slurm_rl", *overrides], check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float(statistics.median([row["time/step_s"] for row in rows if row["stage"] == "grpo"][2:-1]))


if __name__ == "__main__":
    sys.exit(main())
