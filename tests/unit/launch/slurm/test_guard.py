"""The guard of a job whose controller's node is lost, with stand-ins for Slurm's commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_rl.launch.slurm.guard import render_guard

# The job's nodes are those of the file `nodes`, and each command is written down.
SLURM = """
squeue() { cat nodes; }
scancel() { echo "scancel $*" >> asked; }
scontrol() {
  case "$*" in
    "show hostnames "*) echo "$3" | tr , '\\n';;
    "show job "*) echo "   Requeue=1 Restarts=$RESTARTS BatchFlag=1 Reboot=0 ExitCode=0:0";;
    *) echo "scontrol $*" >> asked; return $REFUSES;;
  esac
}
sleep() { rounds=$((${rounds:-0} + 1)); [ $rounds -le $ROUNDS ]; }
"""


def look(folder: Path, nodes: str, *, rounds: int = 1, refuses: int = 0, restarts: int = 1) -> list[str]:
    (folder / "nodes").write_text(nodes)
    (folder / "asked").touch()
    script = f"ROUNDS={rounds} REFUSES={refuses} RESTARTS={restarts}\n{SLURM}{render_guard('n1', '7', 1)}"
    subprocess.run(["sh", "-c", script], cwd=folder, check=False, timeout=60)
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize("nodes", ["n1,n2,n3", "n3,n1", ""])
def test_it_asks_for_nothing_while_the_node_is_there_or_nobody_knows(tmp_path: Path, nodes: str) -> None:
    assert look(tmp_path, nodes, rounds=3) == []


def test_a_job_without_its_controllers_node_starts_again(tmp_path: Path) -> None:
    assert look(tmp_path, "n11,n2") == ["scontrol requeue 7"]


@pytest.mark.parametrize("restarts", [2, 11])
def test_a_job_that_slurm_has_started_again_is_left_alone(tmp_path: Path, restarts: int) -> None:
    assert look(tmp_path, "n2", rounds=3, restarts=restarts) == []


def test_a_job_that_may_not_be_requeued_frees_its_nodes(tmp_path: Path) -> None:
    assert look(tmp_path, "n2", refuses=1) == ["scontrol requeue 7", "scancel 7"]
