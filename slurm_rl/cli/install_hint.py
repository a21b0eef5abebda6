"""Next action for a Python that cannot run slurm_rl. Also parsed by Python 3.6, the system's on older clusters."""

import platform
import sys
from pathlib import Path

PACKAGES = frozenset({"hydra", "omegaconf", "pydantic", "submitit", "rich", "yaml", "pygal"})
"""Modules of the packages that every verb may import."""


def render_hint() -> str:
    """Return the Python seen and the commands that install slurm_rl, as the end of a message."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".venv/bin/python").is_file():
        action = f"{root}/.venv/bin/python -m slurm_rl"
    elif (root / "pyproject.toml").is_file():
        python = sys.executable if sys.version_info >= (3, 11) else "python3.12"
        action = f"cd {root} && {python} -m venv .venv && .venv/bin/pip install . && .venv/bin/slurm-rl --help"
        action += "; or `make demo`; docs/install.md has the lines for uv and conda"
    else:
        action = "install slurm_rl again in a new environment"
    return f"; got {platform.python_version()} in {sys.executable}. Next: {action}"
