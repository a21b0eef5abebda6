from pathlib import Path
from typing import Any

import pytest

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.placeholders import collapse_placeholders, expand_placeholders
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import encode_prompts
from slurm_rl.errors import DataError
from tests.image_kit import write_image
from tests.tiny_models import TinyVL


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
    rows = [
        PromptRow(index=0, prompt=message(text, image), answer="1"),
        PromptRow(index=1, prompt="é?", answer="2"),
    ]
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
