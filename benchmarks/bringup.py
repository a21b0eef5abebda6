"""Bring-up time on a real Slurm: seconds from the start of the job until the trainer sees all nodes.

    python -m benchmarks.bringup --nodes 2 4 --repeats 2

Compares slurm_rl with the scripts of OpenRLHF (Slurm), verl (Slurm with AMD) and OpenRLHF-M (GCP), and with a
hand-written start of all nodes at once, on the test cluster (nodes are namespaces of this machine). Prints a markdown
table of medians; nan if a job ended without a trainer.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bringup_scripts import BY_HAND, PYTHON, SCRIPTS
from tests.slurm.cluster import Cluster, reset, wait_until

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600.0


class Bench:
    """Measurements on one cluster of the project in `tree`."""

    def __init__(self, cluster: Cluster, tree: Path = ROOT) -> None:
        self.cluster, self.tree, self.ask_at = cluster, tree, 0.0

    def measure(self, way: str, num_nodes: int) -> float:
        """Return seconds from the job's first line to the trainer's record; NaN if the job ended without one."""
        folder = Path(tempfile.mkdtemp(prefix="b", dir=self.cluster.root))
        start, done = folder / "start", folder / "done"
        driver = f"{sys.executable} {ROOT}/benchmarks/bringup_driver.py {num_nodes} {done}"
        if way == "ours":
            self._submit_ours(folder, num_nodes, driver)
        else:
            self._submit_script({**SCRIPTS, "by hand": BY_HAND}[way], folder, num_nodes, driver)
        wait_until(lambda: self._is_over(done), f"the trainer of {way}", timeout_s=TIMEOUT_S)
        if way == "ours":
            print_phases(folder / "run", float(start.read_text()))
        reset(self.cluster)
        return float(done.read_text()) - float(start.read_text()) if done.is_file() else math.nan

    def _is_over(self, done: Path) -> bool:
        if done.is_file():
            return bool(done.read_text())
        if time.monotonic() < self.ask_at:
            return False
        # Seldom, since polling costs time too.
        self.ask_at = time.monotonic() + 5.0
        return not self.cluster.run(["squeue", "-h"]).stdout and not done.is_file()

    def _submit_script(self, template: str, folder: Path, num_nodes: int, driver: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        script = folder / "job.sh"
        script.write_text(template.format(start=folder / "start", ray=ray, driver=driver, python=sys.executable))
        options = [f"-N{num_nodes}", "--ntasks-per-node=1", "--exclusive", "--mem=0", "--overcommit"]
        # Otherwise Ray would require this user's token, if there is one.
        options += ["--export=ALL,RAY_AUTH_MODE=disabled", f"--output={folder}/log"]
        done = self.cluster.run(["sbatch", *options, str(script)])
        assert done.returncode == 0, done.stderr

    def _submit_ours(self, folder: Path, num_nodes: int, driver: str) -> None:
        python = folder / "python"
        python.write_text(PYTHON.format(driver=driver, run=folder / "run", python=sys.executable))
        python.chmod(0o755)
        # Setup lines run first in the batch script, and again on each node, where the file already exists.
        setup = f"[ -s {folder}/start ] || date +%s.%N > {folder}/start"
        words = ["+exp=demo", "+cluster=slurm_cpu", f"cluster.num_nodes={num_nodes}", "cluster.slurm.exclusive=true"]
        # Ray counts this machine's cores, regardless of the nodes' config.
        words += [f"cluster.cpus_per_node={os.cpu_count()}", "cluster.mem_gb_per_node=null"]
        words += [f"cluster.python={python}", f"run_dir={folder}/run", f"cluster.setup=['{setup}']"]
        argv = [sys.executable, "-m", "slurm_rl", *words]
        env = {**self.cluster.env, "PYTHONPATH": str(self.tree)}
        subprocess.run(argv, cwd=self.tree, env=env, check=True, capture_output=True)


def print_phases(run: Path, start: float) -> None:
    """Print the seconds of each phase, including the preflight gate alone."""
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    phases = [f"{row['kind']} {row['time'] - start:.1f}" for row in rows if row["time"] > start]
    gate = [f"; gate {row['seconds']:.1f} s" for row in rows if row["kind"] == "preflight/passed"]
    print(f"  phases: {', '.join(phases)}{''.join(gate)}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=2, help="of ours and by hand; a script's time is its sleeps")
    parser.add_argument("--scripts", nargs="*", choices=SCRIPTS, default=[*SCRIPTS], help="to stand beside them")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    ways = [*args.scripts, "by hand, no dashboard", "slurm_rl, with dashboard"]
    lines = [f"| nodes | {' | '.join(ways)} | of by hand |", "|" + "---|" * (len(ways) + 2)]
    with Cluster(root, num_nodes=max(args.nodes)) as cluster:
        for num_nodes in args.nodes:
            lines.append(measure_row(Bench(cluster), args.scripts, num_nodes, args.repeats))
    shutil.rmtree(root)
    print("\n".join(lines))


def measure_row(bench: Bench, scripts: Sequence[str], num_nodes: int, repeats: int) -> str:
    seeds = []
    for script in scripts:
        seeds.append(bench.measure(script, num_nodes))
        print(f"  {num_nodes} nodes: {script} {seeds[-1]:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    hand, ours = [], []
    for _ in range(repeats):
        # In turns, so that other load affects both.
        hand.append(bench.measure("by hand", num_nodes))
        ours.append(bench.measure("ours", num_nodes))
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"  {num_nodes} nodes: by hand {hand[-1]:.1f} s, ours {ours[-1]:.1f} s, {load}", file=sys.stderr)
    by_hand, own = statistics.median(hand), statistics.median(ours)
    beside = [f"{seconds:.1f} s ({own / seconds:.2f} x)" for seconds in seeds]
    ratio = f"{own / by_hand:.2f} x ({own - by_hand:+.1f} s)"
    return f"| {' | '.join([str(num_nodes), *beside, f'{by_hand:.1f} s', f'{own:.1f} s', ratio])} |"


if __name__ == "__main__":
    main()
