"""Compare two trees of this project: seconds of bring-up, sweep submission, GRPO and SFT.

    git worktree add /shared/before <commit>
    python -m benchmarks.before_after /shared/before --repeats 5

Each case runs in both trees in turn (before, after, after, before, ...), in one environment, so that other load affects
both. Prints a markdown table of medians and of the median of after / before over pairs. The nodes of the test cluster
must see the other tree (so not below /tmp), and it must have this tree's demo.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.bringup import Bench
from slurm_rl.run_dir.jsonl import read_rows
from tests.slurm.cluster import Cluster, reset
from tests.whole_run import OVERRIDES

ROOT = Path(__file__).parents[1]
Seconds = dict[str, float]


def start(tree: Path, words: list[str], env: Mapping[str, str] = os.environ) -> float:
    """Run `python -m slurm_rl` of the tree; return its seconds."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "slurm_rl", *words]
    done = subprocess.run(argv, cwd=tree, env={**env, "PYTHONPATH": str(tree)}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} in {tree} must end with 0; got {done.returncode}\n{done.stderr[-2000:]}")
    return time.monotonic() - began


def bring_up(cluster: Cluster, tree: Path, folder: Path) -> Seconds:
    return {"bring-up, 2 nodes": Bench(cluster, tree).measure("ours", 2)}


def submit_sweep(cluster: Cluster, tree: Path, folder: Path) -> Seconds:
    words = ["-m", "+exp=demo", "+cluster=slurm_cpu", "cluster.num_nodes=1", "cluster.mem_gb_per_node=1"]
    words += ["seed=range(100)", "+cluster.slurm.extra.hold=true", f"hydra.sweep.dir={folder}/sweep"]
    seconds = start(tree, [*words, "cluster.cpus_per_node=1"], cluster.env)
    reset(cluster)
    return {"submission of 100 runs": seconds}


def train(name: str, words: list[str], stage: str) -> Callable[[Cluster, Path, Path], Seconds]:
    def measure(cluster: Cluster, tree: Path, folder: Path) -> Seconds:
        seconds = start(tree, [*words, "logging.wandb.mode=disabled", f"run_dir={folder}/run"])
        steps = [row["time/step_s"] for row in read_rows(folder / "run" / "metrics.jsonl") if row["stage"] == stage]
        # The first steps compile and fill caches.
        return {f"{name}, whole run": seconds, f"{name}, a step": statistics.median(steps[2:])}

    return measure


CASES: dict[str, Callable[[Cluster, Path, Path], Seconds]] = {
    "bringup": bring_up,
    "sweep": submit_sweep,
    "grpo": train("GRPO", [*OVERRIDES, "trainer.num_steps=30"], "grpo"),
    "sft": train("SFT", ["+exp=sft_tiny", "data.num_eval=100"], "sft"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="another checkout of this project")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    trees = (args.before.resolve(), ROOT)
    seconds: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    with Cluster(root / "c", num_nodes=2, shared=[root]) as cluster:
        for repeat in range(args.repeats):
            for case in args.cases:
                for index in (0, 1) if repeat % 2 == 0 else (1, 0):
                    folder = Path(tempfile.mkdtemp(dir=root))
                    for name, value in CASES[case](cluster, trees[index], folder).items():
                        seconds[name][index].append(value)
                        print(f"  {name}: {('before', 'after')[index]} {value:.3f} s", file=sys.stderr, flush=True)
                    shutil.rmtree(folder)
    shutil.rmtree(root, ignore_errors=True)
    print("| case | before | after | after / before | pairs |\n|---|---|---|---|---|")
    for name, (before, after) in seconds.items():
        ratios = [new / old for old, new in zip(before, after, strict=True)]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        middle = f"{statistics.median(before):.3g} s | {statistics.median(after):.3g} s"
        print(f"| {name} | {middle} | {statistics.median(ratios):.3f} | {span} |")


if __name__ == "__main__":
    main()
