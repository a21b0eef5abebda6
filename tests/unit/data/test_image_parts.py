import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.config.data import DataConfig
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.placeholders import collapse_placeholders, expand_placeholders
from slurm_rl.data.prompts import PromptRow, load_rows
from slurm_rl.data.tokenize import encode_prompts
from slurm_rl.errors import DataError
from tests.image_kit import write_image
from tests.tiny_models import TinyVL


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


def test_images_fill_places_or_precede_text(folder: Path) -> None:
    one, two, spaced = (image(folder / name) for name in ("1.png", "2.png", "a b.png"))
    names = ["1.png", "2.png"]
    before, marked = load(folder, {"prompt": "?", "images": names}, {"prompt": "<image>or <image>?", "images": names})
    assert before.prompt == [{"role": "user", "content": [one, two, text("?")]}]
    assert marked.prompt == [{"role": "user", "content": [one, text("or "), two, text("?")]}]
    # Parts without an image are places in order.
    parts = [text("a"), {"type": "image"}, image("2.png"), {"type": "image"}, text("b")]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
    (row,) = load(folder, {"prompt": messages, "images": ["1.png", f"file://{folder}/a b.png"]})
    filled = [text("a"), one, two, spaced, text("b")]
    assert row.prompt == [messages[0], {"role": "user", "content": filled}]


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


class AreaCounter:
    """Count one token per 100 pixels."""

    image_token_id = 5

    def count_tokens(self, size: tuple[int, int]) -> int:
        if size[0] > 50:
            raise ValueError("too wide")
        return size[0] * size[1] // 100


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    sizes = [(20, 10), (10, 10), (60, 10)]
    return [write_image(tmp_path / f"{i}.png", i, *size) for i, size in enumerate(sizes)]


def test_placeholder_expands_to_image_and_contracts(sources: list[str]) -> None:
    rendered = [1, 5, 2, 5, 5, 3]
    chosen = [sources[0], sources[1], sources[0]]
    expanded, spans = expand_placeholders(rendered, chosen, AreaCounter(), "row 0")
    assert expanded == [1, 5, 5, 2, 5, 5, 5, 3]
    assert [(span.source, span.start, span.num_tokens) for span in spans] == [
        (chosen[0], 1, 2),
        (chosen[1], 4, 1),
        (chosen[2], 5, 2),
    ]
    assert collapse_placeholders(expanded, spans) == rendered


def test_mismatch_of_images_is_named_with_row(sources: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 7: .*; got 2 placeholders and 1 images"):
        expand_placeholders([5, 5], sources[:1], AreaCounter(), "row 7")
    with pytest.raises(DataError, match=r"row 7: .*too wide.*; got 60 x 10 pixels"):
        expand_placeholders([5], sources[2:], AreaCounter(), "row 7")
    with pytest.raises(DataError, match=r"row 7: every image must be readable; got .*gone\.png"):
        expand_placeholders([5], [str(tmp_path / "gone.png")], AreaCounter(), "row 7")


def encode(tokenizer: Any, rows: list[PromptRow], counter: AreaCounter | None) -> Any:
    return encode_prompts(
        rows,
        tokenizer,
        template=ChatTemplate(tokenizer),
        max_prompt_tokens=64,
        context_length=128,
        max_tokens=8,
        images=counter,
    )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from slurm_rl.models.load_model import load_tokenizer

    return load_tokenizer(TinyVL().write(tmp_path_factory.mktemp("model")))


def message(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_rows_with_and_without_images_are_encoded_together(tokenizer: Any, sources: list[str]) -> None:
    image, text = {"type": "image", "image": sources[0]}, {"type": "text", "text": "é?"}
    rows = [PromptRow(index=0, prompt=message(text, image), answer="1"), PromptRow(index=1, prompt="é?", answer="2")]
    seeing, blind = encode(tokenizer, rows, AreaCounter())
    [span] = seeing.images
    assert seeing.token_ids[span.start - 1 : span.start + 3] == [3, 5, 5, 4]
    assert tokenizer.decode(collapse_placeholders(seeing.token_ids, seeing.images)) == seeing.text
    assert blind.images == ()
    assert span == ImageSpan(source=sources[0], start=span.start, num_tokens=2)


def test_images_for_text_model_are_refused(tokenizer: Any, sources: list[str]) -> None:
    row = PromptRow(index=7, prompt=message({"type": "image", "image": sources[0]}), answer="1")
    with pytest.raises(DataError, match="row 7: a prompt with images needs a vision-language model"):
        encode(tokenizer, [row], None)


def test_placeholder_in_text_of_row_is_refused(tokenizer: Any) -> None:
    row = PromptRow(index=7, prompt="what is <|image_pad|>?", answer="1")
    with pytest.raises(DataError, match=r"row 7: .*; got 1 placeholders and 0 images"):
        encode(tokenizer, [row], AreaCounter())


def test_length_limit_counts_tokens_of_images(tokenizer: Any, tmp_path: Path) -> None:
    large = write_image(tmp_path / "large.png", 0, 50, 200)
    row = PromptRow(index=7, prompt=message({"type": "image", "image": large}), answer="1")
    with pytest.raises(DataError, match=r"row 7: a prompt must fit in data\.max_prompt_tokens = 64"):
        encode(tokenizer, [row], AreaCounter())
