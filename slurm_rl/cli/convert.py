"""`convert`: write a checkpoint of a run as a Hugging Face model."""

import argparse
from pathlib import Path
from typing import Protocol

import yaml

from slurm_rl.cli.find import find_run
from slurm_rl.config.parse import parse_config
from slurm_rl.config.user_files.load import import_heavy
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.models.checkpoint.store import Checkpoint, CheckpointStore
from slurm_rl.run_dir.meter import measure
from slurm_rl.run_dir.run_dir import RunDir


def run(args: argparse.Namespace) -> int:
    directory = find_run(args.rest)
    with measure("checking the checkpoint"):
        checkpoint = find_checkpoint(directory, args.step)
    out = args.out or directory.path / f"export-step-{checkpoint.step}"
    if out.exists():
        raise ConfigError("--out must name a new folder", seen=str(out), action="choose another, or remove it")
    write = prepare(directory, checkpoint, max_bytes=int(args.max_shard_gb * 1e9))
    count = write(out, is_checked=not args.no_check)
    print(f"step {checkpoint.step}: {count:,} parameters in {out}")
    return 0


class Write(Protocol):
    """Writes a checkpoint as a Hugging Face model into a new folder; returns the number of parameters."""

    def __call__(self, out: Path, *, is_checked: bool) -> int:
        """
        Args:
            is_checked: load the result to compare its logits.
        """


def prepare(directory: RunDir, checkpoint: Checkpoint, *, max_bytes: int = 5_000_000_000) -> Write:
    """Return the function that converts a checkpoint.

    Args:
        max_bytes: of one file.

    Raises:
        MissingLibraryError: this machine has no torch or transformers.
    """
    engine = import_heavy("slurm_rl.models.convert", "convert needs torch and transformers")
    config = parse_config(yaml.safe_load(directory.config.read_text(encoding="utf-8")))
    model_path = config.model.path or str(directory.model)

    def write(out: Path, *, is_checked: bool) -> int:
        folder = checkpoint.path / "policy"
        count: int = engine.convert_checkpoint(
            folder, model_path, config.model, out, max_bytes, check_logits=is_checked
        )
        return count

    return write


def find_checkpoint(directory: RunDir, step: int | None) -> Checkpoint:
    """Return the checkpoint of this step, or the newest, after its hashes were verified.

    Raises:
        CheckpointError: there is none; the message lists all checkpoints, and the defects of damaged ones.
    """
    store = CheckpointStore(directory.checkpoints)
    found = store.latest() if step is None else store.at(step)
    if found is None:
        there = ", ".join(sorted(path.name for path in directory.checkpoints.glob("step-*"))) or "none"
        wanted = "a whole checkpoint" if step is None else f"a whole checkpoint step-{step}"
        raise CheckpointError(
            f"the run must have {wanted}",
            seen="; ".join([f"available: {there}", *store.skipped]),
            action="choose another --step",
        )
    return found
