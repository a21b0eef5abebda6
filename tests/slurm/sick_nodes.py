"""Simulated hardware faults: a fake nvidia-smi prints a recorded output, modified per node by a file."""

from pathlib import Path

from slurm_rl.plugins.health.evidence import find_bad, read_evidence
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster

SAMPLE = Path(__file__).parents[1] / "samples" / "nvidia-smi-q.h100-healthy.txt"
REMAP_FAILED = "s/Remapping Failure Occurred        : No/Remapping Failure Occurred        : Yes/"


def make_nvidia_smi(folder: Path) -> Path:
    """Return a folder for PATH. The file `<folder>/<node>` holds a sed program for that node's output for two GPUs."""
    text = SAMPLE.read_text(encoding="utf-8").replace("Attached GPUs                             : 8", "")
    head, _, rest = text.partition("GPU 0000")
    gpu = f"GPU 0000{rest}"
    (folder / "two.txt").write_text(head + 2 * gpu)
    (folder / "one.txt").write_text(head + gpu)
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
[ "$1" = -q ] || exit 1
sick={folder}/$SLURMD_NODENAME text={folder}/two.txt
[ -e $sick.lies ] && text={folder}/one.txt
[ -r $sick ] && exec sed "$(cat $sick)" $text
exec cat $text
"""
    )
    program.chmod(0o755)
    return folder


def make_slow_python(folder: Path, python: Path, node: str) -> Path:
    """Make a cluster.python that limits ranks of the fabric test on this node to a tenth of their core."""
    program = folder / "slow-python"
    program.write_text(
        f"""#!/bin/sh
case "$SLURMD_NODENAME $*" in "{node} "*fabric_node*) ;; *) exec {python} "$@" ;; esac
setsid {python} "$@" & pid=$!
trap 'env kill -KILL -- -$pid; exit 1' TERM INT HUP
while kill -0 $pid 2>/dev/null; do
env kill -STOP -- -$pid; sleep 0.09; env kill -CONT -- -$pid; sleep 0.01
done
"""
    )
    program.chmod(0o755)
    return program


def excluded_by_run(run: Path) -> dict[str, str]:
    """Return the nodes that the run excludes, with the check that failed."""
    return {node: one.check for node, one in find_bad(read_evidence(RunDir(run)), now=0.0).items()}


def excluded_by_slurm(cluster: Cluster, job: str) -> str:
    """Return the job's ExcNodeList in Slurm; "(null)" if empty."""
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    return next((word.partition("=")[2] for word in shown.split() if word.startswith("ExcNodeList=")), "no job")
