"""Measure the controller's cost of a preflight with simulated nodes.

    python -m benchmarks.preflight --nodes 4 16 128

Each simulated node has eight GPUs, with a recorded output of nvidia-smi.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.plugins.health.judge import apply_policy, judge_nodes
from slurm_rl.plugins.health.script import parse_outputs
from slurm_rl.plugins.health.table import TABLE
from slurm_rl.plugins.health.verdict import NodeSpec

_SAMPLE = Path(__file__).parents[1] / "tests" / "samples" / "nvidia-smi-q.h100-healthy.txt"
_GPUS = 8


def simulate_output(hosts: Sequence[str]) -> str:
    """Return the interleaved output of all nodes, as srun prints it."""
    head, _, gpu = _SAMPLE.read_text(encoding="utf-8").partition("GPU 0000")
    files = ["canary word", "tmp_writable yes", "tmp_kb 99000000 90000000", "shm_writable yes"]
    sources = {
        "files": [*files, "shm_kb 99000000 9000000", "clock 0.5"],
        "start": ["python ok", "limits end"],
        "nvidia-smi": (head + _GPUS * f"GPU 0000{gpu}").splitlines(),
        "disks": ["write run_dir 0 0.10 0.20"],
    }
    rows = [(source, line) for source, lines in sources.items() for line in [*lines, "=rc 0"]]
    return "\n".join(f"{host}|{source}|{line}" for source, line in rows for host in hosts)


def time_judging(hosts: Sequence[str]) -> tuple[float, float]:
    """Return seconds, and megabytes of output."""
    output = simulate_output(hosts)
    checks = [check for check in TABLE if check.vendor in ("", "nvidia") and check.level == "quick"]
    spec = NodeSpec("nvidia", _GPUS, len(hosts), "word", True, (0.0, 1.0))
    began = time.monotonic()
    decision = apply_policy(judge_nodes(parse_outputs(output), checks, spec, hosts), {})
    seconds = time.monotonic() - began
    if decision.unfit or decision.common:
        raise SystemExit(f"simulated nodes must be healthy; got {decision}")
    return seconds, len(output) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 128])
    args = parser.parse_args()
    for number in args.nodes:
        hosts = [f"n{index}" for index in range(number)]
        seconds, megabytes = time_judging(hosts)
        print(f"{number:4} nodes: {megabytes:6.2f} MB of output judged in {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
