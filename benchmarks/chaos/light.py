"""cluster.python of a light storm: the real Python, but with light_node.py instead of Ray."""

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
NODE, TRAINER = HERE / "light_node.py", HERE / "light_trainer.py"


def make_python(folder: Path) -> Path:
    """Write the executable to `folder`, which every node must see."""
    path = folder / "python"
    real, node = shlex.quote(sys.executable), shlex.quote(str(NODE))
    # python -m slurm_rl.node.ray_start 300 start --block ...
    path.write_text(
        f'#!/bin/sh\n[ "$2" = slurm_rl.node.ray_start ] && shift 2 && exec {real} {node} "$@"\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return path
