import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.data import DataConfig
from slurm_rl.config.load import load_config
from slurm_rl.data.chat import ChatTemplate, open_template
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import render_prompt
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.launch.runs.model_shape import check_template, describe_prompts, uses_chat_template
from tests.tiny_models import TinyModel

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}{% endfor %}"


class Tokenizer:
    name_or_path = "a model"
    all_special_tokens = ("<|im_start|>",)

    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def get_chat_template(self, **_: Any) -> str:
        assert self.chat_template is not None
        return self.chat_template

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<|im_start|>{one['role']}:{one['content']}" for one in messages)


@pytest.mark.parametrize(
    ("choice", "template", "expected"),
    [("auto", TEMPLATE, True), ("auto", None, False), (True, TEMPLATE, True), (False, TEMPLATE, False)],
)
def test_open_template_follows_tokenizer(choice: Any, template: str | None, expected: bool) -> None:
    opened = open_template(Tokenizer(template), DataConfig(train="x.jsonl", chat_template=choice))
    assert (opened is not None) is expected


@pytest.mark.parametrize(
    "fields", [{"system": "Be brief."}, {"chat_template_kwargs": {"a": 1}}, {"chat_template": True}]
)
def test_open_template_raises_if_needed_template_is_missing(fields: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="need a tokenizer with a chat template"):
        open_template(Tokenizer(None), DataConfig(train="x.jsonl", **fields))


@pytest.mark.parametrize("word", ["data.system=Hi", "+data.chat_template_kwargs.a=1", "data.chat_template=true"])
def test_check_template_refuses_unsupported_key(word: str) -> None:
    with pytest.raises(ConfigError, match=r"needs a tokenizer with a chat template; got .*tiny_qwen3 without one"):
        check_template(load_config(["+exp=demo", word]))
    check_template(load_config(["+exp=demo", TinyModel(chat_template="x").word, word]))


def test_render_prompt_refuses_rendered_text() -> None:
    template = ChatTemplate(Tokenizer(TEMPLATE))
    assert render_prompt(PromptRow(index=0, prompt="Hi", answer=""), template) == "<|im_start|>user:Hi"
    with pytest.raises(DataError, match=r"applied twice.*data\.chat_template=false"):
        render_prompt(PromptRow(index=0, prompt="<|im_start|>user:Hi", answer=""), template)


@pytest.mark.parametrize(
    ("files", "expected", "words"),
    [
        ({"tokenizer_config.json": {"chat_template": TEMPLATE}}, True, "rendered with the tokenizer's chat template"),
        ({"tokenizer_config.json": {}, "chat_template.jinja": {}}, True, "rendered with the tokenizer's chat template"),
        ({"tokenizer_config.json": {}}, False, "plain text, no chat template"),
        ({}, None, "rendered with the tokenizer's chat template if it has one"),
    ],
)
def test_describe_prompts_follows_files(
    tmp_path: Path, files: dict[str, Any], expected: bool | None, words: str
) -> None:
    for name, content in {"config.json": {}, **files}.items():
        (tmp_path / name).write_text(json.dumps(content))
    config = load_config(["+exp=demo", "model=hf", f"model.path={tmp_path}"])
    assert uses_chat_template(config) is expected
    assert describe_prompts(config) == f"{words} (data.chat_template=auto)"
