"""Check the text that SFT trains for every chat template in trl; tests/trained_text.py records it."""

import re
from typing import Any

import pytest

from slurm_rl.data.chat import convert_calls
from slurm_rl.errors import DataError
from tests.templates import FOLDER, build_tokenizer
from tests.trained_text import ADD, CONVERSATIONS, FAMILIES, FILE, fit, split_turns, train, write_record

MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
MARKED = [family for family in FAMILIES if MARK.search((FOLDER / f"{family}.jinja").read_text(encoding="utf-8"))]
"""Templates with generation marks of their authors."""


def test_trained_text_of_templates_matches_golden() -> None:
    assert "\n".join(write_record()) == FILE.read_text(encoding="utf-8"), "read the change, then run the recorder"


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_text_is_same_with_special_token_tags(family: str) -> None:
    for name in CONVERSATIONS:
        assert train(family, name, has_special_tags=True) == train(family, name), name


@pytest.mark.parametrize("family", MARKED)
def test_trained_text_matches_generation_marks(family: str) -> None:
    """Marks may include the turn's header and trailing whitespace; Gemma's tool calls lack their stop token."""
    for name in CONVERSATIONS:
        turns = train(family, name)
        if not turns[0].startswith("refused"):
            marked = "".join(read_marks(family, name))
            for turn in turns:
                _, found, marked = marked.partition(turn.strip().removesuffix("<|tool_response>"))
                assert found, (name, turn)
            assert marked.strip() in ("", "<|im_end|>"), "the end of text, which the training template adds"


def read_marks(family: str, name: str) -> list[str]:
    tokenizer: Any = build_tokenizer(family, has_special_tags=False)
    encoded = tokenizer.apply_chat_template(
        convert_calls(fit(CONVERSATIONS[name], family), tokenizer, "row"),
        tools=[ADD] if name == "tools" else None,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    marked = [place for place, is_marked in enumerate(encoded["assistant_masks"]) if is_marked]
    return split_turns(encoded["input_ids"], marked, tokenizer)


@pytest.mark.parametrize("arguments", [{"a": 3}, '{"a": 3}'])
@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize(("family", "written"), [
    ("qwen3", '"arguments": {"a": 3}'), ("gptoss", '<|message|>{"a": 3}'), ("deepseekv3", '```json\n{"a": 3}\n```')
])  # fmt: skip
def test_convert_calls_reads_each_form_for_each_template(
    family: str, written: str, content: str | None, arguments: Any
) -> None:
    tokenizer = build_tokenizer(family)
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    messages = convert_calls([{"role": "user", "content": "?"}, turn], tokenizer, "row 3")
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert written in text and "None" not in text


def test_convert_calls_refuses_template_without_calls() -> None:
    with pytest.raises(DataError, match="row 3: tool calls need a chat template that renders them"):
        convert_calls(CONVERSATIONS["cut after a call"], build_tokenizer("llama3"), "row 3")
