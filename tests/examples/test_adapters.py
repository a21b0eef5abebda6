"""Train on environments of other packages by the README, with real Ray, vLLM and torch on CPU."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters_python import adapters_python
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import EXAMPLES, LOCAL_OVERRIDES, ROOT, read_commands
from tests.whole_run import exact_rows

SIZES = (*LOCAL_OVERRIDES, "trainer.num_steps=2", "data.num_eval=8", "eval.interval=2", "eval.num_samples=1")
SIZES += ("trainer.prompts_per_step=4", "algorithm.group_size=4", "warmup.num_steps=40", "env.agent_concurrency=2")


def run(words: list[str], folder: Path, *, out: str | None = None) -> str:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    if out is not None:
        (folder / out).write_text(done.stdout)
    return done.stdout


def run_commands(part: str, folder: Path, *sizes: str) -> str:
    """Run the README's commands that contain `part`, except those that make rows."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(EXAMPLES)
    commands = [command for command in read_commands("adapters") if any(part in word for word in command)]
    starts = [command for command in commands if "plan" not in command]
    assert starts
    more = {command[3]: [*SIZES, *sizes] for command in starts if command[3:4] == ["--config-dir"]}
    return "".join(run([sys.executable, *command[1:], *more.get(command[3], [])], folder) for command in starts)


def check(folder: Path) -> list[dict[str, Any]]:
    """Check that no episode failed and that the policy trained where rewards differed; return the step rows."""
    rows = exact_rows(folder)
    assert find_unexplained({key for row in rows for key in row}) == set()
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2 and all(row["reward/failed"] == 0 for row in steps)
    trained = [row for row in steps if "mismatch/max" in row]
    assert trained and all(row["mismatch/max"] < 1e-4 and row["policy/grad_norm"] > 0 for row in trained)
    return steps


def run_package(adapter: str, rows: str, folder: Path, *program: str) -> list[dict[str, Any]]:
    """Run both commands for a package with the Python of its environment; return the step rows."""
    python = adapters_python()
    (folder / "data").mkdir()
    [made] = [command for command in read_commands("adapters") if f"play_{adapter}.py" in command[1]]
    (folder / "examples").symlink_to(EXAMPLES)
    run([python, str(ROOT / made[1]), *made[2:]], folder, out=f"data/{rows}.jsonl")
    run_commands(f"runs/{rows}", folder, f"env.agent_command=[{','.join([python, f'adapter:{adapter}', *program])}]")
    return check(folder / "runs" / rows)


@pytest.mark.slow
def test_frozen_lake(tmp_path: Path) -> None:
    if importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed; it comes with the extra dev")
    run([sys.executable, str(EXAMPLES / "adapters/make_data.py")], tmp_path)
    # A 2x2 lake, where a barely trained model reaches the goal in 3.5 turns on average, so some fail.
    words = json.dumps({"is_slippery": False, "desc": ["SG", "GF"]})
    world = ["python", "adapter:gymnasium", "FrozenLake-v1", "--words", words, "--max-steps", "3"]
    printed = run_commands("frozen_lake", tmp_path, f"env.agent_command={json.dumps(world)}")
    assert "turn 1" in printed and "observation" in printed
    for row in check(tmp_path / "runs/frozen_lake"):
        assert 1 < row["episode/turns_mean"] <= 10 and row["score/steps"] == pytest.approx(row["episode/turns_mean"])


@pytest.mark.slow
def test_task_of_reasoning_gym(tmp_path: Path) -> None:
    steps = run_package("reasoning_gym", "words", tmp_path)
    # Scored per letter: a weak model gets part of the reward.
    assert all(row["episode/turns_mean"] == 1 and 0 < row["reward/mean"] < 1 for row in steps)


@pytest.mark.slow
def test_environment_of_verifiers(tmp_path: Path) -> None:
    steps = run_package("verifiers", "stones", tmp_path, "examples/adapters/stones.py:load_environment")
    assert all(1 <= row["episode/turns_mean"] <= 4 and row["score/moves"] > 0 for row in steps)
    # The reward is the sum of the rubric.
    for row in steps:
        assert row["reward/mean"] == pytest.approx(row["score/won"] + 0.1 * row["score/moves"])
