"""`prepare`: data sets and models from the hub into a folder that every node sees."""

import argparse
import re
import sys
from pathlib import Path

from slurm_rl.cli.parser import choose
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.prepare.fetch_model import prepare_model
from slurm_rl.plugins.prepare.make_dataset import prepare_dataset
from slurm_rl.plugins.prepare.manifest import NAME
from slurm_rl.plugins.prepare.recipes import RECIPES
from slurm_rl.plugins.prepare.verl_rows import FOLDER as VERL

MODEL = "model"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def run(args: argparse.Namespace) -> int:
    more = args.rest[1:]
    chosen = choose("what `prepare` fetches", next(iter(args.rest), None), [*RECIPES, MODEL])
    root = expand_user(args.root).absolute()
    if chosen == MODEL:
        return _run_model(" ".join(more), args, root)
    if more:
        raise ConfigError("name exactly one data set", seen=" ".join(args.rest), action="leave out the others")
    return _run_dataset(chosen, args, root)


def _run_dataset(name: str, args: argparse.Namespace, root: Path) -> int:
    recipe, for_verl = RECIPES[name], args.format == VERL
    if for_verl and recipe.verl is None:
        known = [known.name for known in RECIPES.values() if known.verl]
        raise ConfigError(
            "--format verl is for data sets that verl can score", seen=name, action=f"one of {', '.join(known)}"
        )
    folder = (root / VERL if for_verl else root) / recipe.name
    manifest = prepare_dataset(recipe, folder, args.revision, args.leave_out_bad_rows, _say, for_verl=for_verl)
    for output in manifest.outputs:
        if output.rows is not None:
            print(f"{folder / output.file}  {output.rows} rows")
    if manifest.left_out:
        print(f"left out: {len(manifest.left_out)} rows, named in {folder / NAME}")
    return 0


def _run_model(repo: str, args: argparse.Namespace, root: Path) -> int:
    if not _REPO.fullmatch(repo):
        raise ConfigError(
            "prepare model needs the name of a repository",
            seen=repo or "none",
            action="python -m slurm_rl prepare model Qwen/Qwen2.5-VL-3B-Instruct",
        )
    if args.leave_out_bad_rows or args.format == VERL:
        flag = "--leave-out-bad-rows" if args.leave_out_bad_rows else "--format"
        raise ConfigError(f"{flag} is for data sets", seen=f"model {repo}", action="leave it out")
    folder = root / repo
    prepare_model(repo, folder, args.revision, _say)
    print(f"model=hf model.path={folder}")
    _say(f"with data.root={root}, runs find it by its name, too: model.path={repo}")
    return 0


def list_recipes() -> str:
    """Return the data sets and models, for --help."""
    listed = [f"  {name:<16}{recipe.about}" for name, recipe in RECIPES.items()]
    return "\n".join(
        ["what:", *listed, f"  {'model <repo>':<16}weights (safetensors), tokenizer and config of a model"]
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
