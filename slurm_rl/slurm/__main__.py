"""The controller as a program, for an allocation that submitit did not make: `python -m slurm_rl.slurm <run>`.

The name is a contract as that of controller.py is.
"""

from __future__ import annotations

import sys

from slurm_rl.slurm.controller import run_controller

if __name__ == "__main__":
    sys.exit(run_controller(sys.argv[1]))
