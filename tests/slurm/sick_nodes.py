"""Nodes that a fake nvidia-smi makes sick: it prints the recorded XML, changed as a file of the node says."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.plugins.health.nodes.evidence import find_bad, read_evidence
from slurm_rl.run_dir import RunDir
from tests.slurm.cluster import Cluster

SAMPLE = Path(__file__).parents[1] / "samples" / "nvidia-smi-qx.driver575.xml"
REMAP_FAILED = "s/<remapped_row_failure>No/<remapped_row_failure>Yes/"


def make_nvidia_smi(folder: Path) -> Path:
    """A folder for PATH; `<folder>/<node>` holds what sed does to that node's answer. Two GPUs without a fault."""
    head, _, rest = SAMPLE.read_text(encoding="utf-8").partition("\t<gpu ")
    gpu = f"\t<gpu {rest.partition('</nvidia_smi_log>')[0]}"
    gpu = gpu.replace("<sram_uncorrectable_parity>N/A", "<sram_uncorrectable_parity>0")
    gpu = gpu.replace("<type>G<", "<type>X<").replace("<used>2026 MiB<", "<used>0 MiB<")
    (folder / "two.xml").write_text(head.replace(">1</attached", ">2</attached") + 2 * gpu + "</nvidia_smi_log>\n")
    (folder / "one.xml").write_text(head + gpu + "</nvidia_smi_log>\n")
    program = folder / "nvidia-smi"
    program.write_text(
        f"""#!/bin/sh
[ "$1" = -q ] || exit 1
sick={folder}/$SLURMD_NODENAME xml={folder}/two.xml
[ -e $sick.lies ] && xml={folder}/one.xml
[ -r $sick ] && exec sed "$(cat $sick)" $xml
exec cat $xml
"""
    )
    program.chmod(0o755)
    return folder


def make_slow_python(folder: Path, python: Path, node: str) -> Path:
    """A cluster.python whose ranks in the test of the fabric get a tenth of their core on this node."""
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


def remembered(run: Path) -> dict[str, str]:
    """Node -> the check by which the run's own evidence keeps it out."""
    return {node: one.check for node, one in find_bad(read_evidence(RunDir(run)), now=0.0).items()}


def excluded(cluster: Cluster, job: str) -> str:
    """The job's list in Slurm; "(null)" for none."""
    shown = cluster.run(["scontrol", "show", "job", job]).stdout
    return next((word.partition("=")[2] for word in shown.split() if word.startswith("ExcNodeList=")), "no job")
