"""The answers that a warm-up shows lose no character in silence."""

from __future__ import annotations

import pytest

from slurm_rl.config.model import TinyModelConfig
from slurm_rl.engine.tiny import build_character_tokenizer
from slurm_rl.errors import DataError
from slurm_rl.rl.prompts import encode_answers


def test_an_answer_becomes_its_tokens_and_the_end_of_text() -> None:
    tokenizer = build_character_tokenizer(TinyModelConfig(characters="ab"))
    assert encode_answers([("my.jsonl:1", "ab"), ("my.jsonl:2", "b")], tokenizer) == [[2, 3, 1], [3, 1]]


def test_an_answer_that_the_tokenizer_cannot_write_is_named_with_its_row() -> None:
    tokenizer = build_character_tokenizer(TinyModelConfig(characters="ab"))
    with pytest.raises(DataError, match=r"my.jsonl:2: .*got 'c' in 'abc'.*model.tiny.characters"):
        encode_answers([("my.jsonl:1", "a"), ("my.jsonl:2", "abc")], tokenizer)
