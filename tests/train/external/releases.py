"""Build our command lines for other trainers, and unpack their releases for tests of their parsers."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.checkpoint_layouts import Found, fill_checkpoint
from slurm_rl.plan.external_argv import RunValues, build_external_argv, build_limit_words, flatten
from slurm_rl.plan.save_deadline import fill_limit

RELEASES = {
    "dotted": "openrlhf==0.11.2",
    "flat": "openrlhf==0.8.5",
    "verl": "verl==0.9.1",
    "xpk": "xpk==1.16.0",
    "maxtext": "maxtext==0.2.5",
    "tunix": "google-tunix==0.1.7",
    "prime": "prime-pydantic-config==0.4.3",
    "skyrl": "skyrl==0.4.0",
    "torchtitan": "torchtitan==0.3.0",
    **{name.partition("=")[0]: name for name in ("tyro==1.0.17", "docstring-parser==0.18.0", "typeguard==4.6.1")},
    **{name.partition("=")[0]: name for name in ("spmd_types==0.2.3", "torch_checkpointing==0.1.1", "einops==0.8.2")},
    "torchdata": "torchdata==0.11.0",
}
NEEDED_BY_TORCHTITAN = (
    "tyro",
    "docstring-parser",
    "typeguard",
    "spmd_types",
    "torch_checkpointing",
    "einops",
    "torchdata",
)
_FOR_A_NEWER_PYTHON = ("xpk", "maxtext", "tunix", "skyrl")


def build(
    name: str,
    *words: str,
    resume: bool = False,
    nodes: int = 2,
    step: str = "global_step_7",
    limit_s: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of an experiment, and its command line.

    Args:
        step: folder of the newest checkpoint.
        limit_s: seconds of the job, at second 1,000,000, until it must have saved; None without a time limit.
    """
    # Experiments set no machine sizes; most of their original scripts use these.
    sizes = ["+cluster=nvidia_a100", f"cluster.num_nodes={nodes}", "cluster.gpus_per_node=8"]
    config = load_config([*sizes, f"exp={name}", *words]).external
    assert config is not None
    run = RunValues(nodes=nodes, gpus_per_node=8, checkpoints="/run/checkpoints", export="/run/export")
    argv = fill_checkpoint(build_external_argv(config, run, resume=resume), Found(step, 7))
    limit = () if limit_s is None else fill_limit(build_limit_words(config, run), 1_000_000 + limit_s, 1_000_000)
    return flatten(config.args), [*argv, *limit]


def unpack(root: Path, name: str) -> Path:
    """Return the folder of a release below `root`; download it once, without dependencies."""
    folder = root / name
    if folder.is_dir():
        return folder
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--python-version=3.12", "--only-binary=:all:"] if name in _FOR_A_NEWER_PYTHON else []
    wheels = root / f"{name}-wheel"
    done = subprocess.run([*command, "--dest", str(wheels), RELEASES[name]], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{RELEASES[name]} cannot be downloaded here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for moved in folder.glob("*.data/*lib/*"):
        moved.rename(folder / moved.name)
    return folder


def list_keys(tree: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of a tree's sections and leaves."""
    below = (list_keys(value, f"{prefix}{key}.") for key, value in tree.items() if isinstance(value, dict))
    return {f"{prefix}{key}" for key in tree}.union(*below)
