"""The demo in bfloat16, with no other setting than its number format: it trains, syncs and resumes."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_rl.run_dir import RunDir
from tests.whole_run import exact_rows, kill_trainer, start_run


def test_a_run_in_bfloat16_agrees_with_its_engine_at_every_sync_and_resumes(tmp_path: Path) -> None:
    """Its one optimizer step a batch is on-policy, so nothing is clipped though two programs round in two ways."""
    run = RunDir(tmp_path / "run")
    process = start_run(run.path, "model.dtype=bfloat16")
    kill_trainer(run, process, 42)
    process.communicate(timeout=600)
    output, _ = (process := start_run(run.path, verb="resume")).communicate(timeout=600)
    assert process.returncode == 0, output
    assert json.loads(run.end.read_text())["state"] == "finished"
    steps = [row for row in exact_rows(run.path) if row["stage"] == "grpo"]
    assert len(steps) == 6
    trained = [row for row in steps if row.get("policy/grad_norm", 0) > 0]
    assert len(trained) > 2
    assert all(row["policy/clip_fraction"] == 0 for row in trained)
    # Rounding is there, and is told.
    assert all(1e-5 < row["mismatch/mean"] < 0.05 and row["correction/weight_mean"] > 0.9 for row in trained)
    assert all(0 < row["sync/probe_difference"] < 0.3 for row in steps)
