"""Complete runs with other weight transports than the demo's. Takes minutes."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.whole_run import exact_rows, start_run

pytestmark = pytest.mark.slow


def finish(run_dir: Path, *words: str) -> list[dict[str, float]]:
    process = start_run(run_dir, *words)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return exact_rows(run_dir)


def test_gloo_run_has_metrics_of_object_store(whole_run: Path, tmp_path: Path) -> None:
    """All metrics are identical."""
    assert finish(tmp_path / "gloo", "rollout.weight_transfer=gloo") == exact_rows(whole_run)


def test_async_engines_take_direct_transfers(tmp_path: Path) -> None:
    """Between two steps; checksum and probe verify each version."""
    words = ("rollout.weight_transfer=gloo", "rollout.inflight_weight_updates=true", "rollout.max_off_policy_steps=1")
    rows = [row for row in finish(tmp_path / "ahead", *words) if row["stage"] == "grpo"]
    assert len(rows) == 6
    assert max(row["rollout/staleness"] for row in rows) > 0


def test_engines_hold_base_with_sent_adapters(tmp_path: Path) -> None:
    """Only adapters are sent and exported; engine and policy agree on the probe after every sync."""
    words = ("+lora=all_linear", "model.lora.rank=8", "model.lora.export=adapter")
    rows = [row for row in finish(tmp_path / "lora", *words) if row["stage"] == "grpo"]
    assert len(rows) == 6
    assert any(row["policy/grad_norm"] > 0 for row in rows)
    assert max(row["sync/probe_difference"] for row in rows) < 1e-4
    assert max(row["mismatch/max"] for row in rows) < 1e-4
    from safetensors.numpy import load_file

    export = tmp_path / "lora" / "export"
    adapters = load_file(export / "adapter_model.safetensors")
    assert all(np.abs(tensor).max() > 0 for tensor in adapters.values())
    # The policy merges them before sending, instead of each engine: all metrics are identical.
    assert finish(tmp_path / "merged", *words, "rollout.weight_transfer=gloo") == exact_rows(tmp_path / "lora")
    assert json.loads((export / "adapter_config.json").read_text())["r"] == 8
