"""What Ray is asked to start: `python -m slurm_rl.ray_jobs.inside <job id>`.

A resumed run is shipped with its own snapshot of the code, which may be of an earlier version and knows no other name.
"""

from __future__ import annotations

import sys

from slurm_rl.launchers.ray.allocation import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
