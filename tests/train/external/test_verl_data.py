"""verl's reader and scorers accept the output of `prepare --format verl`."""

import json
import subprocess
import sys
from pathlib import Path

from slurm_rl.plugins.prepare.dataset import BadRows, Workspace
from slurm_rl.plugins.prepare.recipes import RECIPES
from slurm_rl.plugins.prepare.verl_rows import build_for_verl
from tests.tiny_llama import build_tiny_llama
from tests.unit.plugins.prepare.small_sets import gsm8k, math

SETS = {"gsm8k": (gsm8k, "So it is\n#### ANSWER"), "math": (math, "So it is $\\boxed{ANSWER}$.")}


def make_rows(name: str, folder: Path) -> Path:
    """Return the training rows that `prepare` makes of a small data set."""
    folder.mkdir()
    sources = {}
    for number, (file, content) in enumerate(SETS[name][0]().items()):
        sources[file] = folder / f"{number}"
        sources[file].write_bytes(content)
    form = RECIPES[name].verl
    assert form is not None
    build_for_verl(name, form, Workspace(folder=folder, sources=sources, bad_rows=BadRows(False), say=print))
    return folder / "train.parquet"


def test_verl_reads_and_scores_all_sets(packages: Path, tmp_path: Path) -> None:
    files = [f"{make_rows(name, tmp_path / name)}={right}" for name, (_, right) in SETS.items()]
    words = [str(packages / "verl"), str(build_tiny_llama(tmp_path / "model")), *files]
    script = Path(__file__).with_name("verl_data.py")
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, found in zip(SETS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        form = RECIPES[name].verl
        assert form is not None and found["rows"] == len(found["scores"]) >= 2 and found["index"] == 0
        assert all(scores == [1, 0] for scores in found["scores"]), (name, found["scores"])
        assert found["raw_prompt"][0]["role"] == "user" and form.instruction in found["raw_prompt"][0]["content"]


def test_verl_sets_are_readable() -> None:
    assert set(SETS) == {recipe.name for recipe in RECIPES.values() if recipe.verl}
