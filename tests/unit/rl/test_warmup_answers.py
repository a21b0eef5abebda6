from typing import Any

import pytest

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.prompts import PromptRow
from slurm_rl.errors import DataError
from slurm_rl.trainers.grpo.prompts import encode_answers
from tests.templates import build_tokenizer
from tests.tiny_models import TinyModel, build_character_tokenizer


def build_row(answer: str, **fields: Any) -> PromptRow:
    return PromptRow(index=0, where="my.jsonl:2", prompt="a", answer=answer, **fields)


def test_encode_answers_of_plain_text_ends_with_end_of_text() -> None:
    tokenizer = build_character_tokenizer(TinyModel(characters="ab"))
    assert encode_answers([build_row("ab"), build_row("b")], tokenizer, template=None) == [[2, 3, 1], [3, 1]]


def test_encode_answers_names_row_of_character_without_token() -> None:
    tokenizer = build_character_tokenizer(TinyModel(characters="ab"))
    with pytest.raises(DataError, match=r"my.jsonl:2: .*got 'c' in 'abc'"):
        encode_answers([build_row("a"), build_row("abc")], tokenizer, template=None)


@pytest.mark.parametrize(
    ("family", "trained"), [("gemma3", "7<end_of_turn>"), ("qwen3", "<think>\n\n</think>\n\n7<|im_end|>")]
)
def test_encode_answers_of_chat_ends_as_in_sft(family: str, trained: str) -> None:
    tokenizer = build_tokenizer(family)
    template = ChatTemplate(tokenizer)
    [token_ids] = encode_answers([build_row("7")], tokenizer, template=template, system="Be brief.")
    assert tokenizer.decode(token_ids) == trained
