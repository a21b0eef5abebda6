"""The guard of a job whose controller's node is lost, with stand-ins for Slurm's commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_rl.launchers.slurm import guard
from slurm_rl.launchers.slurm.guard import render_guard

ENV = {"SLURMD_NODENAME": "n1", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_NUM_NODES": "3"}
# Slurm of so many nodes; the job's are those of the file `nodes`, and each command is written down.
SLURM = """
squeue() { case "$*" in *%N*) cat nodes;; *) echo "$EXCLUDED";; esac; }
scancel() { echo "scancel $*" >> asked; }
scontrol() {
  case "$*" in
    "show hostnames "*) echo "$3" | tr , '\\n';;
    "-o show partition gpu") echo "PartitionName=gpu TotalNodes=$TOTAL Nodes=n[1-9]";;
    *) echo "scontrol $*" >> asked; case "$*" in *"$REFUSED"*) return 1;; esac;;
  esac
}
sleep() { [ $1 = 0.2 ] || { rounds=$((${rounds:-0} + 1)); [ $rounds -le 3 ]; }; }
"""


def look(folder: Path, nodes: str, *, excluded: str = "N/A", total: int = 9, refused: str = "nothing") -> list[str]:
    (folder / "nodes").write_text(nodes)
    (folder / "asked").touch()
    given = f"EXCLUDED={excluded} TOTAL={total} REFUSED='{refused}'\n"
    subprocess.run(["sh", "-c", SLURM + given + render_guard(ENV, "7")], cwd=folder, check=False, timeout=60)
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize("nodes", ["n1,n2,n3", "n3,n1", ""])
def test_it_asks_for_nothing_while_the_node_is_there_or_nobody_knows(tmp_path: Path, nodes: str) -> None:
    assert look(tmp_path, nodes) == []


@pytest.mark.parametrize(("excluded", "out"), [("N/A", "n1"), ("(null)", "n1"), ("n8,n9", "n8,n9,n1")])
def test_a_job_without_its_controllers_node_starts_again_elsewhere(tmp_path: Path, excluded: str, out: str) -> None:
    asked = look(tmp_path, "n11,n2", excluded=f"'{excluded}'")
    assert asked == ["scontrol requeue 7", f"scontrol update JobId=7 ExcNodeList={out}"]


def test_where_no_others_are_enough_the_node_may_come_back(tmp_path: Path) -> None:
    assert look(tmp_path, "n2", total=3) == ["scontrol requeue 7"]


def test_a_job_that_may_not_be_requeued_frees_its_nodes(tmp_path: Path) -> None:
    assert look(tmp_path, "n2", refused="requeue") == ["scontrol requeue 7", "scancel 7"]


def test_a_list_that_slurm_does_not_take_is_not_asked_for_ever(tmp_path: Path) -> None:
    asked = look(tmp_path, "n2", refused="update")
    assert len(asked) == 1 + guard._TRIES
