"""Token ids that a reward model reads in training and scoring; its score is at the last one.

    text                  [BOS] 3+4= 7 <eos>
    ChatML                <|im_start|>user\\n3+4?<|im_end|>\\n<|im_start|>assistant\\n7<|im_end|>\\n
    text that begins with a special token is already rendered: no BOS is added, and the chat's own end ends it

A chat is rendered by the reward model's own template, to its last token, where Hugging Face's classifiers and TRL read
the score. A truncated answer gets no end token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_rl.data.chat import ChatTemplate, as_messages, as_plain, is_rendered
from slurm_rl.data.encode_answers import refuse_what_nobody_sees
from slurm_rl.data.lines import shorten
from slurm_rl.data.prompts import Message, Text
from slurm_rl.errors import DataError

Tokenize = Callable[[str, bool], list[int]]
"""(text, whether the tokenizer's own special tokens go around it) -> token ids."""

_MARK = "THE-ANSWER-STANDS-HERE"


def encode_scored(
    prompt: Text,
    answer: Text,
    tokenizer: Any,
    *,
    template: ChatTemplate | None,
    truncated: bool = False,
    name: str = "item",
    tokenize: Tokenize | None = None,
) -> list[int]:
    """Return the token ids of prompt and answer; the score is read at the last.

    Args:
        template: renders prompt and answer; None: both are text.
        tokenize: replaces `tokenizer`; training reports characters that it cannot encode.

    Raises:
        DataError: messages without a template, or messages that the template refuses or ignores.
    """
    tokenize = tokenize or (lambda text, special: list(tokenizer(text, add_special_tokens=special)["input_ids"]))
    if template is not None:
        messages = [*as_messages(prompt, "user"), *as_messages(answer, "assistant")]
        refuse_what_nobody_sees(messages, name, sees_images=False)
        text = template.render(messages, name, add_generation_prompt=False)
        return tokenize(_cut_end(text, _find_end(messages, template, name), name) if truncated else text, False)
    prompt, answer = as_plain(prompt, answer, name)
    if is_rendered(prompt, tokenizer):
        chat: list[Message] = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        end = _find_end(chat, ChatTemplate(tokenizer), name) if tokenizer.chat_template else tokenizer.eos_token
        return tokenize(prompt + answer + ("" if truncated else end), False)
    token_ids = [*tokenize(prompt, True), *tokenize(answer, False)]
    return token_ids if truncated else [*token_ids, tokenizer.eos_token_id]


def _cut_end(text: str, end: str, name: str) -> str:
    if not text.endswith(end):
        raise DataError(
            f"{name}: the chat template must end every answer in the same way",
            seen=f"{shorten(repr(text[-len(end) :]))} in place of {end!r}",
            action="correct the template of the reward model",
        )
    return text.removesuffix(end)


def _find_end(messages: list[Message], template: ChatTemplate, name: str) -> str:
    marked = [*messages[:-1], {**messages[-1], "content": _MARK}]
    return template.render(marked, name, add_generation_prompt=False).rpartition(_MARK)[2]
