"""What the preflight costs the controller: answers of simulated nodes, taken apart and judged; pairs over real sockets.

    python -m benchmarks.preflight --nodes 4 16 128

A stand-in for nodes with eight GPUs each, whose answers are the recorded XML eight times; it times what grows with
their number. What a node itself takes is the vendor's tool, 1 to 5 s, at once on all nodes. `--sockets` also starts as
many processes of the pairs' program on this machine, which share its cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_rl.plugins.health.gate import pairs_node
from slurm_rl.plugins.health.gate.judge import apply_policy, judge_nodes
from slurm_rl.plugins.health.gate.script import parse_answers
from slurm_rl.plugins.health.gate.table import TABLE
from slurm_rl.plugins.health.gate.verdict import Wanted
from slurm_rl.plugins.health.measure_pairs import Leader, lead

_SAMPLE = Path(__file__).parents[1] / "tests" / "samples" / "nvidia-smi-qx.driver575.xml"
_GPUS = 8


def make_answers(hosts: Sequence[str]) -> str:
    """What srun prints of all nodes, their lines mixed."""
    head, _, rest = _SAMPLE.read_text(encoding="utf-8").partition("\t<gpu ")
    gpu = f"\t<gpu {rest.partition('</nvidia_smi_log>')[0]}"
    xml = (head + _GPUS * gpu + "</nvidia_smi_log>").splitlines()
    files = [
        "canary word",
        "tmp_writable yes",
        "tmp_kb 99000000 90000000",
        "shm_writable yes",
        "shm_kb 99000000 9000000",
    ]
    said = {
        "files": [*files, "clock 0.5"],
        "start": ["python ok", "memlock unlimited", "nofile 1024"],
        "nvidia-smi": xml,
        "kernel": ["uptime 1000.0"],
        "nvlink": ["GPU 0: x", " Link 0: 25 GB/s"],
        "disks": ["write run_dir 0 0.10 0.20"],
        "ports": ["mlx5_0:1 4: ACTIVE|400 Gb/sec (4X NDR)|0"],
    }
    rows = [(source, line) for source, lines in said.items() for line in [*lines, "=rc 0"]]
    return "\n".join(f"{host}|{source}|{line}" for source, line in rows for host in hosts)


def time_judging(hosts: Sequence[str]) -> tuple[float, float]:
    """Seconds, and the megabytes that were read."""
    output = make_answers(hosts)
    checks = [check for check in TABLE if check.vendor in ("", "nvidia") and check.level == "quick"]
    wanted = Wanted("nvidia", _GPUS, len(hosts), "word", True, (0.0, 1.0))
    began = time.monotonic()
    found = apply_policy(judge_nodes(parse_answers(output), checks, wanted, hosts), {})
    seconds = time.monotonic() - began
    if found.unfit or found.common:
        raise SystemExit(f"simulated nodes must be well; got {found}")
    return seconds, len(output) / 1e6


@contextlib.contextmanager
def start_nodes(leader: Leader, hosts: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "SLURM_RL_PAIRS": leader.word}
    argv = [sys.executable, "-I", "-S", str(Path(pairs_node.__file__)), "127.0.0.1", str(leader.port)]
    started = [subprocess.Popen([*argv, host], env=env, text=True) for host in hosts]
    try:
        yield started[0]
    finally:
        leader.close()
        for node in started:
            node.wait(60)


def time_pairs(hosts: Sequence[str], num_bytes: int) -> float:
    leader = Leader("word", num_bytes=num_bytes)
    began = time.monotonic()
    with start_nodes(leader, hosts) as step:
        found = lead(leader, hosts, step)
    if any(verdict.state == "unknown" for verdict in found.values()):
        raise SystemExit(f"all nodes must come; got {found}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 128])
    parser.add_argument("--sockets", action="store_true")
    flags = parser.parse_args()
    for number in flags.nodes:
        hosts = [f"n{place}" for place in range(number)]
        seconds, megabytes = time_judging(hosts)
        print(f"{number:4} nodes: {megabytes:6.2f} MB of answers judged in {seconds:.2f} s", end="", flush=True)
        print(
            f", pairs of 1 MiB in {time_pairs(hosts, 1 << 20):.2f} s" if flags.sockets and number > 2 else "",
            flush=True,
        )


if __name__ == "__main__":
    main()
