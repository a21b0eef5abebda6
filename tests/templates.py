"""Chat templates of model families from trl, with a tokenizer of one token per character."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(trl.__file__).parent / "chat_templates"
END = {"qwen3": "<|im_end|>", "llama3_2": "<|eot_id|>", "gemma4": "<turn|>", "gemma3": "<end_of_turn>"}
"""End-of-turn token of the families with detailed tests."""

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "One."},
                "why": {"type": "string", "description": "Reason."},
            },
            "required": ["a"],
        },
    },
}


@cache
def special_tokens() -> list[str]:
    """Return the texts in any template that look like special tokens."""
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.jinja"))
    found = set(re.findall(r"<[^<>\s'{}\"\\+]{1,40}>|\[/?[A-Z_]+\]|<\|\"\|>", text))
    return ["<pad>", "<bos>", *sorted(found - {"<pad>", "<bos>"}), "<|python_tag|>"]


def _is_tag(token: str) -> bool:
    ends = ("<pad>", "<bos>", "</s>", "<sop>", "<image>", "<start_of_turn>", "<end_of_turn>", "<end_of_utterance>")
    return re.fullmatch(r"</?[\w:.=-]+>", token) is not None and token not in ends


def build_tokenizer(family: str, *, has_special_tags: bool = True) -> Any:
    """Return a tokenizer with the template of `FOLDER/<family>.jinja`.

    Args:
        has_special_tags: whether tags like <think> are special tokens, or ordinary text as in most families.
    """
    special = [token for token in special_tokens() if has_special_tags or not _is_tag(token)]
    characters = [*map(chr, range(32, 127)), *"\n\u2581\uff5c\u00e9"]
    words = Tokenizer(models.WordLevel({token: n for n, token in enumerate([*special, *characters])}))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token=END.get(family, "<|im_end|>"),
        additional_special_tokens=special[2:],
    )
    tokenizer.chat_template = (FOLDER / f"{family}.jinja").read_text(encoding="utf-8")
    return tokenizer
