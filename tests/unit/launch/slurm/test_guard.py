"""The job's guard, with fakes for Slurm's commands."""

import subprocess
from pathlib import Path

import pytest

from slurm_rl.launch.slurm.allocation import render_guard
from slurm_rl.launch.slurm.successor import LOST

# squeue prints the file `nodes`; other commands are recorded in `commands`.
SLURM = """
squeue() { cat nodes; }
scancel() { echo "scancel $*" >> commands; }
scontrol() {
  case "$*" in
    "show hostnames "*) echo "$3" | tr , '\\n';;
    "show job "*) echo "   Requeue=1 Restarts=$RESTARTS BatchFlag=1 Reboot=0 ExitCode=0:0";;
    *) echo "scontrol $*" >> commands; return $REFUSES;;
  esac
}
sleep() { rounds=$((${rounds:-0} + 1)); [ $rounds -le $ROUNDS ]; }
"""


@pytest.mark.parametrize(
    ("nodes", "rounds", "refuses", "restarts", "commands"),
    [
        ("n1,n2,n3", 3, 0, 1, []),
        ("", 3, 0, 1, []),  # slurmctld does not answer
        ("n11,n2", 1, 0, 1, ["scontrol requeue 7"]),
        ("n2", 3, 0, 2, []),  # Slurm has restarted the job
        (
            "n2",
            1,
            1,
            1,
            ["scontrol requeue 7", f"scontrol update JobId=7 Comment={LOST}", "scancel 7"],
        ),  # requeues are forbidden
    ],
)
def test_guard_requeues_job_without_controller_node(
    tmp_path: Path, nodes: str, rounds: int, refuses: int, restarts: int, commands: list[str]
) -> None:
    (tmp_path / "nodes").write_text(nodes)
    (tmp_path / "commands").touch()
    script = f"ROUNDS={rounds} REFUSES={refuses} RESTARTS={restarts}\n{SLURM}{render_guard('n1', '7', 1)}"
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=False, timeout=60)
    assert (tmp_path / "commands").read_text().splitlines() == commands
