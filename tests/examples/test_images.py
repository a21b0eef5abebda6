"""The image example: the shipped vision-language experiment in bfloat16, with a tiny model and 64 rows."""

import json
import shutil
from pathlib import Path

import pytest

from tests.examples.kit import run_readme
from tests.whole_run import events_of, exact_rows, run_cli, stage_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    run_readme("images", folder, {"images_tiny": ("rollout.dump=true",)})
    return folder / "runs" / "images"


def test_engine_and_policy_agree_on_images_to_bfloat16(run_dir: Path) -> None:
    """test_vision_engines.py checks 1e-4 in float32."""
    steps = stage_rows(run_dir)
    assert len(steps) == 3
    assert any(row["reward/groups_with_signal"] > 0 for row in steps), "nothing was rewarded, so nothing was learned"
    trained = [row for row in steps if row.get("policy/grad_norm", 0) > 0]
    assert len(trained) >= 2
    # Rounding differences exist and are logged.
    assert all(0 < row["sync/probe_difference"] < 0.3 for row in steps)
    assert all(1e-5 < row["mismatch/mean"] < 0.05 and row["correction/weight_mean"] > 0.9 for row in trained)
    # One optimizer step per batch is on-policy, so nothing is clipped despite different rounding.
    assert all(row["policy/clip_fraction"] == 0 for row in trained)


def test_export_is_trained_model_with_image_processor(run_dir: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    before, after = (load_file(run_dir / name / "model.safetensors") for name in ("model", "export"))
    assert before.keys() == after.keys()
    moved = {name for name in before if (before[name].to(after[name].dtype) != after[name]).any()}
    # Names as in the published checkpoints.
    assert {name.partition(".")[0] for name in moved} == {"visual", "model"}
    _, loaded = AutoModelForImageTextToText.from_pretrained(run_dir / "export", output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    AutoImageProcessor.from_pretrained(run_dir / "export")


def test_prompts_with_many_and_no_images_are_trained(run_dir: Path) -> None:
    groups = [json.loads(line) for path in (run_dir / "rollouts").iterdir() for line in path.read_text().splitlines()]
    assert {len(group["prompt"]["images"]) for group in groups} == {0, 1, 2}
    assert len(groups) == 3 * 8


def test_resumed_run_has_identical_metrics(run_dir: Path, tmp_path: Path) -> None:
    """With images, bfloat16, HTTP rewards and a reference model, all metrics except times are identical.

    The test deletes everything saved after the first GRPO step, as a lost machine would; text runs are killed for real.
    """
    whole = Path(shutil.copytree(run_dir, tmp_path / "whole"))
    for name in ("checkpoints/step-47", "checkpoints/step-48", "export"):
        shutil.rmtree(run_dir / name)
    (run_dir / "end.json").unlink()
    # From the directory of submission, because the data path is relative.
    run_cli(run_dir.parents[1], "resume", str(run_dir))
    [resumed] = events_of(run_dir, "trainer/resumed")
    assert resumed["step"] == 46
    assert exact_rows(run_dir) == exact_rows(whole)
    exported = [(folder / "export" / "model.safetensors").read_bytes() for folder in (run_dir, whole)]
    assert exported[0] == exported[1]
