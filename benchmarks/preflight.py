"""Measure the controller's cost of a preflight with simulated nodes, and of pairs over real sockets.

    python -m benchmarks.preflight --nodes 4 16 128

Each simulated node has eight GPUs, with a recorded output of nvidia-smi. `--sockets` also starts as many clients of the
measurement of pairs on this machine, which share its cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slurm_rl.plugins.health import pairs_node
from slurm_rl.plugins.health.judge import apply_policy, judge_nodes
from slurm_rl.plugins.health.leader import TOKEN_VARIABLE, Leader, lead_pairs
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
        "kernel": ["uptime 1000.0"],
        "nvlink": ["GPU 0: x", " Link 0: 25 GB/s"],
        "disks": ["write run_dir 0 0.10 0.20"],
        "ports": ["mlx5_0:1 4: ACTIVE|400 Gb/sec (4X NDR)"],
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


@contextlib.contextmanager
def start_clients(leader: Leader, hosts: Sequence[str]) -> Iterator[Callable[[], bool]]:
    env = {**os.environ, TOKEN_VARIABLE: leader.token}
    argv = [sys.executable, "-I", "-S", str(Path(pairs_node.__file__)), "127.0.0.1", str(leader.port)]
    clients = [subprocess.Popen([*argv, host], env=env) for host in hosts]
    try:
        yield lambda: clients[0].poll() is not None
    finally:
        leader.close()
        for client in clients:
            client.wait(60)


def time_pairs(hosts: Sequence[str], num_bytes: int) -> float:
    leader = Leader(num_bytes=num_bytes)
    began = time.monotonic()
    with start_clients(leader, hosts) as has_ended:
        verdicts = lead_pairs(leader, hosts, has_ended)
    if any(verdict.state == "unknown" for verdict in verdicts.values()):
        raise SystemExit(f"all nodes must connect; got {verdicts}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 128])
    parser.add_argument("--sockets", action="store_true")
    args = parser.parse_args()
    for number in args.nodes:
        hosts = [f"n{index}" for index in range(number)]
        seconds, megabytes = time_judging(hosts)
        pairs = f", pairs of 1 MiB in {time_pairs(hosts, 1 << 20):.2f} s" if args.sockets and number > 2 else ""
        print(f"{number:4} nodes: {megabytes:6.2f} MB of output judged in {seconds:.2f} s{pairs}", flush=True)


if __name__ == "__main__":
    main()
