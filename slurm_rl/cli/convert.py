"""`convert`: write a checkpoint of a run as a Hugging Face model."""

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

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
    size = int(args.max_shard_gb * 1e9)
    count = prepare(directory, checkpoint, max_shard_bytes=size, check_logits=not args.no_check)(out)
    print(f"step {checkpoint.step}: {count:,} parameters in {out}")
    return 0


def prepare(
    directory: RunDir, checkpoint: Checkpoint, *, max_shard_bytes: int = 5_000_000_000, check_logits: bool = True
) -> Callable[[Path], int]:
    """Return the function that converts a checkpoint into a new folder and returns the number of parameters.

    Raises:
        MissingLibraryError: this machine has no torch or transformers.
    """
    engine = import_heavy("slurm_rl.models.convert", "convert needs torch and transformers")
    config = parse_config(yaml.safe_load(directory.config.read_text(encoding="utf-8")))
    model_path = config.model.path or str(directory.model)
    policy, options = checkpoint.path / "policy", {"max_shard_bytes": max_shard_bytes, "check_logits": check_logits}
    return functools.partial(engine.convert_checkpoint, policy, model_path, config.model, **options)


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
