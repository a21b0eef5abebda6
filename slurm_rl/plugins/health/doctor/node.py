"""Answer for one node: `python -m slurm_rl.plugins.health.doctor.node <folder>`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from slurm_rl.node.limits import raise_limits
from slurm_rl.plan.job import NODE_VARIABLE
from slurm_rl.plugins.health.doctor.finding import load_question, save_answer
from slurm_rl.plugins.health.doctor.probes import run_probes


def main(folder: str) -> int:
    raise_limits()  # as a node agent does
    # Any numbering will do here; of one node alone a task of srun's may have another number.
    question = load_question(Path(folder), 0)
    if question.plan.num_nodes > 1:
        question = load_question(Path(folder), int(os.environ["SLURM_PROCID"]))
    save_answer(question, os.environ.get(NODE_VARIABLE) or socket.gethostname(), run_probes(question))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
