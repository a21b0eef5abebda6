"""The Python of a light storm's nodes: as the real one, but for Ray, in whose place it starts light_node.py."""

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
NODE, TRAINER = HERE / "light_node.py", HERE / "light_trainer.py"


def make_python(folder: Path) -> Path:
    """An executable in `folder`, which every node must see."""
    path = folder / "python"
    real, node = shlex.quote(sys.executable), shlex.quote(str(NODE))
    # python -m slurm_rl.node.ray_start 300 start --block ...
    path.write_text(
        f'#!/bin/sh\n[ "$2" = slurm_rl.node.ray_start ] && shift 2 && exec {real} {node} "$@"\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return path
