import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.data.load_data import load_prompts
from slurm_rl.data.prompts import PromptRow, load_rows
from slurm_rl.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("1.png", "2.png", "a b.png", "c%20d.png"):
        (tmp_path / name).touch()
    return tmp_path


def load(folder: Path, *rows: dict[str, Any], image: str | None = "images") -> list[PromptRow]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"answer": "1", **row}) + "\n" for row in rows))
    return load_rows(path, DataConfig(image_key=image))


def image(path: Path | str) -> dict[str, str]:
    return {"type": "image", "image": str(path)}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_images_without_place_precede_text(folder: Path) -> None:
    (row,) = load(folder, {"prompt": "which?", "images": ["1.png", "2.png"]})
    content = [image(folder / "1.png"), image(folder / "2.png"), text("which?")]
    assert row.prompt == [{"role": "user", "content": content}]


def test_marks_in_text_are_places(folder: Path) -> None:
    (row,) = load(folder, {"prompt": "<image>or <image>?", "images": ["1.png", "2.png"]})
    content = [image(folder / "1.png"), text("or "), image(folder / "2.png"), text("?")]
    assert row.prompt == [{"role": "user", "content": content}]


def test_parts_without_image_are_places_in_order(folder: Path) -> None:
    parts = [text("a"), {"type": "image"}, image("2.png"), {"type": "image"}, text("b")]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    (row,) = load(folder, {"prompt": messages, "images": ["1.png", f"file://{folder}/a b.png"]})
    filled = [text("a"), image(folder / "1.png"), image(folder / "2.png"), image(folder / "a b.png"), text("b")]
    assert row.prompt == [{"role": "system", "content": "s"}, {"role": "user", "content": filled}]


def test_rows_with_and_without_images_stand_in_one_file(folder: Path) -> None:
    one, none, null = load(
        folder,
        {"prompt": "which?", "images": "1.png"},
        {"prompt": "why?", "images": []},
        {"prompt": "when?", "images": None},
    )
    assert one.prompt == [{"role": "user", "content": [image(folder / "1.png"), text("which?")]}]
    assert [none.prompt, null.prompt] == [[{"role": "user", "content": words}] for words in ("why?", "when?")]


@pytest.mark.parametrize(
    ("given", "found"), [("file://{0}/a%20b.png", "a b.png"), ("file://{0}/c%20d.png", "c%20d.png")]
)
def test_escaped_and_plain_file_addresses_are_equal(given: str, found: str, folder: Path) -> None:
    (row,) = load(folder, {"prompt": [{"role": "user", "content": [image(given.format(folder))]}]}, image=None)
    assert row.prompt == [{"role": "user", "content": [image(folder / found)]}]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "<image><image>", "images": ["1.png"]}, "1 images for 2 places"),
        ({"prompt": "<image>", "images": ["1.png", "2.png"]}, "2 images for 1 places"),
        ({"prompt": "<image>", "images": None}, "0 images for 1 places"),
        ({"prompt": "a", "images": [3]}, "an image must be a path or bytes"),
        ({"prompt": "a", "images": [""]}, "an image must be a path or bytes"),
        ({"prompt": "a"}, "must have the column 'images' (data.image_key)"),
        ({"prompt": "a", "images": ["gone.png"]}, "gone.png"),
        ({"prompt": [{"role": "user", "content": [image("/nowhere/1.png")]}], "images": []}, "/nowhere/1.png"),
    ],
)
def test_invalid_images_of_row_are_named(row: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(folder, {"prompt": "fine", "images": []}, row)
    assert said in str(caught.value)
    assert f"{folder}/rows.jsonl:2" in str(caught.value)


def test_rows_are_held_out_by_images_too(folder: Path) -> None:
    rows = [{"prompt": "which?", "answer": "1", "images": name} for name in ("1.png", "2.png", "1.png")]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    split = load_prompts(DataConfig(train=str(path), num_eval=1, image_key="images"))
    assert len(split.held_out) == 1
    assert split.held_out[0].prompt not in [row.prompt for row in split.train]
    assert split.train
