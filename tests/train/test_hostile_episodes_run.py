"""A complete run in which half of the episodes are hostile, with real Ray, vLLM and torch on CPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.kit import EXAMPLES, LOCAL_OVERRIDES
from tests.tiny_models import shrink
from tests.whole_run import run_cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WORDS = (
    *LOCAL_OVERRIDES,
    shrink("guessing_game/model"),
    "data.num_eval=4",
    "eval.interval=0",
    "trainer.num_steps=2",
    "trainer.prompts_per_step=4",
    "algorithm.group_size=4",
    "env.agent_rows_per_process=0",
    "env.agent_concurrency=4",
)


def test_step_trains_on_fair_episodes_and_names_failures_of_others(tmp_path: Path) -> None:
    agent = shutil.copy(Path(__file__).with_name("hostile_agent.py"), tmp_path)
    subprocess.run([sys.executable, EXAMPLES / "guessing_game/make_data.py"], cwd=tmp_path, check=True)
    shipped = ("--config-dir", str(EXAMPLES / "openai_program"), "+exp=openai_program_tiny")
    words = (*shipped, *WORDS, f"env.agent_command=[python,{agent}]", f"run_dir={tmp_path / 'run'}")
    run_cli(tmp_path, *words)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2
    for row in steps:
        assert row["reward/failed"] == 8.0
        assert row["reward/failed_bad_score"] == 5.0
        assert row["reward/failed_exception"] == 2.0 and row["reward/failed_crash"] == 1.0
        assert row["score/turns"] == 1.0 and row["policy/optimizer_steps"] >= 1.0
        assert not any("\ud800" in key or key == "score/a" for key in row)
