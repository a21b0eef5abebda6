"""`prepare`: data sets and models from the hub into a folder that every node sees."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slurm_rl.prepare.recipes import RECIPES
from slurm_rl.prepare.run import prepare_dataset

MODEL = "model"


def run(words: list[str]) -> int:
    args = _parse(words)
    root = args.root.expanduser().absolute()
    recipe = RECIPES[args.what]
    manifest = prepare_dataset(recipe, root / recipe.name, args.revision, args.leave_out_bad_rows, _say)
    for output in manifest.outputs:
        if output.rows is not None:
            print(f"{root / recipe.name / output.file}  {output.rows} rows")
    if manifest.left_out:
        print(f"left out: {len(manifest.left_out)} bad rows, named in {root / recipe.name / 'manifest.json'}")
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<16}{recipe.about}" for name, recipe in RECIPES.items())
    parser = argparse.ArgumentParser(
        prog="python -m slurm_rl prepare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"what:\n{listed}",
    )
    parser.add_argument("what", choices=list(RECIPES), metavar="what", help="a data set")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder to write below; ./data by default")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of the repository")
    parser.add_argument("--leave-out-bad-rows", action="store_true", help="go on without rows that are not whole")
    return parser.parse_args(words)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
