"""The verb `eval` from the command line: an SFT model and its checkpoint, evaluated by real engines on CPU."""

import json
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import LOCAL_OVERRIDES
from tests.tiny_models import SMALL_MODEL
from tests.whole_run import run_cli

SETS = ("+eval.sets.sums.data=addition", "+eval.sets.sums.largest_addend=4", "+eval.sets.sums.num_samples=4")
ENGINE = ("data.max_prompt_tokens=6", "rollout.max_tokens=4", "rollout.max_num_seqs=64", "model.dtype=float32")
# Sums small enough that a minute of training gets some of them right.
ROWS = ("data.largest_addend=9", "data.num_eval=10", "supervised.batch_size=64", "supervised.num_epochs=60")
TRAIN = ("+exp=sft_tiny", "supervised.max_steps=60", "checkpoint.interval=30", *ROWS, "run_dir=runs/sft")


def measured(folder: Path, name: str) -> dict[str, float]:
    [row] = read_rows(folder / f"runs/{name}/metrics.jsonl")
    assert find_unexplained(row) == set() and row["stage"] == "eval"
    return {key: value for key, value in row.items() if key.startswith("set/")}


@pytest.mark.slow
def test_evaluation_starts_engines_only(tmp_path: Path) -> None:
    words = ("+exp=demo", "data.train=''", SMALL_MODEL, *SETS, "rollout.max_num_seqs=64", *LOCAL_OVERRIDES)
    run_cli(tmp_path, "eval", *words, "run_dir=runs/alone")
    found = measured(tmp_path, "alone")
    assert found["set/sums/prompts"] == 25 and found["set/sums/failed"] == 0 and found["set/sums/length_mean"] > 1
    assert 0 <= found["set/sums/avg@4"] <= found["set/sums/pass@2"] <= found["set/sums/pass@4"] <= 1
    plan = json.loads((tmp_path / "runs/alone/plan.json").read_text())
    assert {actor["role"] for actor in plan["actors"]} == {"rollout"}


@pytest.mark.slow
def test_evaluation_of_export_and_checkpoint_is_repeatable(tmp_path: Path) -> None:
    run_cli(tmp_path, *TRAIN, SMALL_MODEL, "policy.num_threads=1", "logging.wandb.mode=disabled")
    words = ("model=hf", "model.path=runs/sft", "+reward.verifiers.arithmetic=1", *SETS, *ENGINE, *LOCAL_OVERRIDES)
    for name in ("first", "again"):
        run_cli(tmp_path, "eval", *words, f"run_dir=runs/{name}")
    found = measured(tmp_path, "first")
    assert found["set/sums/prompts"] == 25 and found["set/sums/avg@4"] > 0
    assert measured(tmp_path, "again") == found
    # The newest checkpoint has the numbers of the export.
    named = ("eval", "runs/sft", "--step", "60", *words[2:])
    run_cli(tmp_path, *named, "run_dir=runs/step")
    assert (tmp_path / "runs/step/model/config.json").is_file()
    assert not list((tmp_path / "runs/sft").glob("export-step-*"))
    assert measured(tmp_path, "step") == found
