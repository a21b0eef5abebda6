import json
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from tests.image_kit import write_image

VISION = ["model=tiny_qwen2_5_vl", "warmup.num_steps=0"]


def submit(tmp_path: Path, image: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the error of a run with this image in its second row."""
    write_image(tmp_path / "good.png", 0, 20, 20)
    names = ("good.png", image, "good.png")
    rows = [{"prompt": f"{i}?", "answer": "1", "images": [name]} for i, name in enumerate(names)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_dir = tmp_path / "run"
    common = ["+exp=demo", f"run_dir={run_dir}", f"data.train={data}", "data.num_eval=1", "data.chat_template=true"]
    assert main(["submit", *common, *words]) == 2
    assert not run_dir.exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("image", "said"), [("gone.png", "gone.png"), ("text.png", "hello"), ("https://example.org/1.png", "example.org")]
)
def test_submit_names_row_of_unreadable_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], image: str, said: str
) -> None:
    (tmp_path / "text.png").write_text("hello")
    error = submit(tmp_path, image, capsys, "data.image_key=images", *VISION)
    assert "rows.jsonl:2" in error and said in error


@pytest.mark.parametrize("words", [[], ["model=hf", "model.path={folder}"]])
def test_images_for_text_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    words = [word.format(folder=tmp_path) for word in words]
    error = submit(tmp_path, "good.png", capsys, "data.image_key=images", *words)
    assert "vision-language model" in error and "data.image_key" in error


def test_reversed_bounds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = submit(tmp_path, "good.png", capsys, *VISION, "model.min_pixels=5000", "model.max_pixels=4000")
    assert "model.min_pixels must be <= model.max_pixels; got 5000 > 4000" in error
