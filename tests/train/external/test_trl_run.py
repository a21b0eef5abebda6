"""TRL's own SFT script under our torchrun: two local ranks, stopped, and resumed from its own checkpoint."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.tiny_models import TinyModel
from tests.whole_run import run_cli, start_run, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

NUM_STEPS = 400


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for the shipped preset with a small model, data and machine."""
    from tests.tiny_models import build_tiny_model

    folder = tmp_path_factory.mktemp("trl")
    build_tiny_model(TinyModel(hidden_size=32, num_layers=1), seed=0, folder=folder / "model")
    (folder / "data").mkdir()
    rows = [{"prompt": f"{n}+{n + 1}=", "completion": str(2 * n + 1)} for n in range(64)]
    (folder / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {
        "model_name_or_path": folder / "model",
        "dataset_name": folder / "data",
        "max_steps": NUM_STEPS,
        "save_steps": 20,
        "logging_steps": 1,
        "gradient_accumulation_steps": 1,
        "use_cpu": "true",
        "bf16": "false",
        "gradient_checkpointing": "false",
    }
    program = f"external.argv=[{sys.executable},-m,trl.scripts.sft]"
    return ["+exp=trl_sft_capybara", program, "external.ranks_per_node=2", "job.checkpoint_lead_s=120"] + [
        f"external.args.{name}={value}" for name, value in sizes.items()
    ]


def losses(run: Path) -> dict[int, float]:
    state: dict[str, Any] = json.loads((run / f"checkpoints/checkpoint-{NUM_STEPS}/trainer_state.json").read_text())
    return {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}


def test_trl_saves_at_stop_and_resumes_identically(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_cli(tmp_path, *words, f"run_dir={whole}")
    with start_run(cut, base=words) as running:
        wait_for((cut / "checkpoints/checkpoint-20/trainer_state.json").is_file, "a checkpoint", running)
        run_cli(tmp_path, "cancel", str(cut))
        running.communicate(timeout=200)
    saved = [int(path.name.partition("-")[2]) for path in (cut / "checkpoints").glob("checkpoint-*")]
    assert saved and max(saved) < NUM_STEPS, "stopped before its end"
    # The remains of a killed save.
    (cut / "checkpoints/checkpoint-9999").mkdir()
    run_cli(tmp_path, "resume", str(cut))
    started = [row["checkpoint"] for row in read_rows(RunDir(cut).events) if row["kind"] == "external/started"]
    assert started == [None, f"checkpoint-{max(saved)}"]
    assert len(losses(whole)) == NUM_STEPS and losses(cut) == pytest.approx(losses(whole), rel=1e-4)
    assert (cut / "checkpoints/model.safetensors").is_file()
