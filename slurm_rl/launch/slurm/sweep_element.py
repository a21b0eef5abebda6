"""One element of a job array: `python -m slurm_rl.launch.slurm.sweep_element <array folder>`.

submitit's own arrays write a pickle for each element, named only after sbatch has returned; a thousand of them are
slow on a shared file system, and the first elements may start before theirs is there. A link is all an element needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm_rl.errors import RunDirError
from slurm_rl.launch.protocol import load_entry
from slurm_rl.run_dir.run_dir import RunDir


def find_run(folder: str, env: Mapping[str, str]) -> RunDir:
    """The run of the element that `env` is the environment of."""
    link = Path(folder) / env["SLURM_ARRAY_TASK_ID"]
    if not link.is_symlink():
        raise RunDirError("an element of a sweep's array has a link to its run", seen=str(link))
    return RunDir(link.resolve()).require()


def main(folder: str) -> int:
    return load_entry()(str(find_run(folder, os.environ).path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
