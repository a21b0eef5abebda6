"""Environments of other packages are trained from those packages, by the README. Real Ray, vLLM and torch on CPU."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters_python import adapters_python
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import EXAMPLES, HERE, ROOT, SMALL, read_commands
from tests.whole_run import exact_rows

SIZES = (*HERE, *SMALL, "trainer.num_steps=2", "data.num_eval=8", "eval.every=2", "eval.num_samples=1")
SIZES += ("trainer.prompts_per_step=4", "algorithm.group_size=4", "warmup.num_steps=4", "env.program_at_once=2")


def run(words: list[str], folder: Path, *, out: str | None = None) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    if out is not None:
        (folder / out).write_text(done.stdout)
    return done.stdout


def run_commands(part: str, folder: Path, *sizes: str) -> str:
    """The README's commands with this among their words; those of rows are for the test to run."""
    (folder / "examples").symlink_to(EXAMPLES)
    mine = [command for command in read_commands("adapters") if any(part in word for word in command)]
    starts = [command for command in mine if "plan" not in command]
    assert starts
    more = {command[3]: [*SIZES, *sizes] for command in starts if command[3:4] == ["--config-dir"]}
    return "".join(run([sys.executable, *command[1:], *more.get(command[3], [])], folder) for command in starts)


def check(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run in which nothing failed, and engine and policy agreed."""
    rows = exact_rows(folder)
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2 and all(row["reward/failed"] == 0 and row["mismatch/max"] < 1e-4 for row in steps)
    return steps


@pytest.mark.slow
def test_frozen_lake(tmp_path: Path) -> None:
    if importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed; it comes with the extra dev")
    run([sys.executable, str(EXAMPLES / "adapters/make_data.py")], tmp_path)
    printed = run_commands("frozen_lake", tmp_path)
    assert "turn 1" in printed and "it said" in printed
    for row in check(tmp_path / "runs/frozen_lake"):
        assert 1 < row["episode/turns_mean"] <= 10 and row["score/steps"] == pytest.approx(row["episode/turns_mean"])


@pytest.mark.slow
def test_spell_backward(tmp_path: Path) -> None:
    python = adapters_python("reasoning-gym==0.1.25")
    (tmp_path / "data").mkdir()
    [rows] = [command for command in read_commands("adapters") if "rows" in command]
    run([python, str(ROOT / rows[1]), *rows[2:]], tmp_path, out="data/words.jsonl")
    run_commands("spell_backward_tiny", tmp_path, f"env.program=[{python},adapter:reasoning_gym]")
    steps = check(tmp_path / "runs/spell_backward")
    # By the letter: thirds, of which a model that knows nothing has few.
    assert all(row["episode/turns_mean"] == 1 and row["reward/mean"] < 1 for row in steps)
