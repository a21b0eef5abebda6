"""`prepare`: data sets and models from the hub into a folder that every node sees."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.prepare.manifest import NAME
from slurm_rl.prepare.model import prepare_model
from slurm_rl.prepare.recipes import RECIPES
from slurm_rl.prepare.run import prepare_dataset

MODEL = "model"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def run(words: list[str]) -> int:
    args = _parse(words)
    root = args.root.expanduser().absolute()
    if args.what == MODEL:
        return _run_model(args, root)
    if args.repo:
        raise ConfigError("a data set is named by one word", seen=f"{args.what} {args.repo}")
    return _run_dataset(args, root)


def _run_dataset(args: argparse.Namespace, root: Path) -> int:
    recipe = RECIPES[args.what]
    folder = root / recipe.name
    manifest = prepare_dataset(recipe, folder, args.revision, args.leave_out_bad_rows, _say)
    for output in manifest.outputs:
        if output.rows is not None:
            print(f"{folder / output.file}  {output.rows} rows")
    if manifest.left_out:
        print(f"left out: {len(manifest.left_out)} rows, named in {folder / NAME}")
    return 0


def _run_model(args: argparse.Namespace, root: Path) -> int:
    if not args.repo or not _REPO.fullmatch(args.repo):
        raise ConfigError(
            "prepare model needs the name of a repository",
            seen=args.repo or "none",
            action="python -m slurm_rl prepare model Qwen/Qwen2.5-VL-3B-Instruct",
        )
    if args.leave_out_bad_rows:
        raise ConfigError("--leave-out-bad-rows is for data sets", seen=f"model {args.repo}")
    folder = root / args.repo
    prepare_model(args.repo, folder, args.revision, _say)
    print(f"model=hf model.path={folder}")
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    listed = [f"  {name:<16}{recipe.about}" for name, recipe in RECIPES.items()]
    listed.append(f"  {'model <repo>':<16}weights (safetensors), tokenizer and config of a model")
    parser = argparse.ArgumentParser(
        prog="python -m slurm_rl prepare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="what:\n"
        + "\n".join(listed)
        + "\n\nfrom the Hugging Face hub (HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE); a call that is cut off goes"
        "\non where it was, and one that finds everything whole does nothing",
    )
    parser.add_argument("what", choices=[*RECIPES, MODEL], metavar="what", help="a data set, or `model`")
    parser.add_argument("repo", nargs="?", help="for `model`: its name on the hub")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder to write below; ./data by default")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of the repository")
    parser.add_argument("--leave-out-bad-rows", action="store_true", help="go on without rows that are not whole")
    return parser.parse_args(words)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
