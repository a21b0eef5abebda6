"""One element of a job array: `python -m slurm_rl.launch.slurm.sweep_element <array folder>`.

submitit writes a pickle per element after sbatch has returned: slow for a thousand elements on a shared file system,
and too late for the first ones. Ours have a link.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import RunDirError
from slurm_rl.launch.protocol import load_entry
from slurm_rl.run_dir.run_dir import RunDir


def find_run(folder: str, env: Mapping[str, str]) -> RunDir:
    """Return the run of the element with the environment `env`."""
    link = Path(folder) / env["SLURM_ARRAY_TASK_ID"]
    if not link.is_symlink():
        raise RunDirError("an element of a sweep's array has a link to its run", seen=str(link))
    return RunDir(link.resolve()).require()


if __name__ == "__main__":
    sys.exit(load_entry()(str(find_run(sys.argv[1], os.environ).path)))
