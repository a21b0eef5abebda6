from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig, Qwen3Config

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.rollout.chat_template_check import check_turns
from tests.templates import ADD, build_tokenizer


def build_model(folder: Path, family: str, ends: list[str]) -> Any:
    """Return tokenizer and configs of a model with these stop tokens in generation_config.json."""
    tokenizer = build_tokenizer(family)
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})
    tokenizer.add_special_tokens({"additional_special_tokens": ends}, replace_extra_special_tokens=False)
    Qwen3Config(vocab_size=len(tokenizer), num_hidden_layers=1, hidden_size=8).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(ends)).save_pretrained(folder)
    return tokenizer


def configure(folder: Path, *words: str) -> RunConfig:
    more = ("env.turn_tokens=8", "rollout.max_tokens=64", "data.chat_template=true")
    return load_config(["+exp=demo", "model=hf", f"model.path={folder}", "env.name=mine.py:Mine", *more, *words])


@pytest.mark.parametrize(
    ("family", "ends"),
    [
        ("qwen3", ["<|im_end|>"]),
        ("llama3_2", ["<|end_of_text|>", "<|eot_id|>"]),
        ("gemma3", ["<end_of_turn>"]),
        ("gemma4", ["<turn|>"]),
    ],
)
def test_model_with_end_of_turn_of_template_is_accepted(tmp_path: Path, family: str, ends: list[str]) -> None:
    check_turns(configure(tmp_path), str(tmp_path), build_model(tmp_path, family, ends), [])


def test_model_without_stop_is_refused_with_remedy(tmp_path: Path) -> None:
    """Base models also have chat templates, but their end of turn is no stop token."""
    tokenizer = build_model(tmp_path, "qwen3", ["<|endoftext|>"])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with pytest.raises(ConfigError, match=rf"'<\|im_end\|>' ends a turn of .*endoftext.*stop_token_ids=\[{end}\]"):
        check_turns(configure(tmp_path), str(tmp_path), tokenizer, [])
    check_turns(configure(tmp_path, f"rollout.stop_token_ids=[{end}]"), str(tmp_path), tokenizer, [])
    check_turns(configure(tmp_path, "env.name=null", "env.turn_tokens=null"), str(tmp_path), tokenizer, [])


def test_calls_may_end_with_other_token(tmp_path: Path) -> None:
    """Gemma 4 stops at another token to wait for tool results."""
    tokenizer = build_model(tmp_path, "gemma4", ["<turn|>"])
    with pytest.raises(ConfigError, match="tool_response"):
        check_turns(configure(tmp_path), str(tmp_path), tokenizer, [ADD])
    waiting = build_model(tmp_path, "gemma4", ["<turn|>", "<|tool_response>"])
    check_turns(configure(tmp_path), str(tmp_path), waiting, [ADD])


def test_template_that_hides_observation_is_refused(tmp_path: Path) -> None:
    tokenizer = build_model(tmp_path, "qwen3", ["<|im_end|>"])
    tokenizer.chat_template = "{% for m in messages if m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(ConfigError, match="no observation behind the reply"):
        check_turns(configure(tmp_path), str(tmp_path), tokenizer, [])
