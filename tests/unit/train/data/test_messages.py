"""Prompts with images, however they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import DataError
from slurm_rl.train.data.messages import list_images, parse_prompt
from slurm_rl.train.data.prompts import load_rows

FOLDER = Path("/data")
TEXT = {"type": "text", "text": "?"}
ONE, TWO = {"type": "image", "image": "/data/1.jpg"}, {"type": "image", "image": "/data/2.jpg"}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("prompt", "images"),
    [
        (user({"type": "image", "image": "1.jpg"}, TEXT), None),
        (user({"type": "image", "image": "file:///data/1.jpg"}, TEXT), None),
        (user({"type": "image_url", "image_url": {"url": "/data/1.jpg"}}, TEXT), None),
        (user({"type": "image"}, TEXT), ["1.jpg"]),
        (user(TEXT), "1.jpg"),
        ([{"role": "user", "content": "?"}], ["1.jpg"]),
        ("?", ["1.jpg"]),
        ("?", "/data/1.jpg"),
        (json.dumps(user({"type": "image", "image": "1.jpg"}, TEXT)), None),
    ],
)
def test_every_way_to_write_one_image_before_a_text_is_the_same_prompt(prompt: Any, images: Any) -> None:
    assert parse_prompt(prompt, images, FOLDER, "row 0") == user(ONE, TEXT)


def test_the_order_of_parts_stays() -> None:
    prompt = user(TEXT, {"type": "image", "image": "2.jpg"}, TEXT, {"type": "image"})
    parsed = parse_prompt(prompt, ["1.jpg"], FOLDER, "row 0")
    assert parsed == user(TEXT, TWO, TEXT, ONE)
    assert list_images(parsed) == ["/data/2.jpg", "/data/1.jpg"]


@pytest.mark.parametrize("prompt", ["What is 1+1?", '[{"a": 1}]', "[{", "[1]", [{"role": "user", "content": "?"}]])
def test_prompts_of_text_stay_as_they_are(prompt: Any) -> None:
    assert parse_prompt(prompt, None, FOLDER, "row 0") == prompt
    assert list_images(prompt) == []


@pytest.mark.parametrize(
    ("prompt", "images", "seen"),
    [
        (user({"type": "image"}, TEXT), [], "1 such parts and 0 images"),
        (user({"type": "image"}, TEXT), ["1.jpg", "2.jpg"], "1 such parts and 2 images"),
        ([{"role": "system", "content": "?"}], ["1.jpg"], "message of the user"),
        (user("?"), None, "must be an object with a type"),
    ],
)
def test_what_does_not_fit_is_named_with_its_row(prompt: Any, images: Any, seen: str) -> None:
    with pytest.raises(DataError, match=f"row 7.*{seen}"):
        parse_prompt(prompt, images, FOLDER, "row 7")


def test_rows_of_a_file_hold_sources_beside_it_and_mix_with_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "?", "answer": "1", "pictures": ["a.png", "b.png"]}, {"prompt": "1+1", "answer": "2"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = load_rows(path, "prompt", "answer", "pictures")
    assert list_images(first.prompt) == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert second.prompt == "1+1"
