"""Encode a prompt with its answer, and mark the trained tokens.

    ChatML, three turns           <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n ...
    trained (of each such turn)                                                   ^^^^^^^^^^^^^^^

The whole conversation is rendered and tokenized once. An image is one token until `expand_all`.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_rl.algorithms.sequences import ImageSpan
from slurm_rl.data.answer_spans import AnswerSpan, find_answer
from slurm_rl.data.chat import ChatTemplate, as_messages, as_plain, is_rendered, with_tools
from slurm_rl.data.images import list_images
from slurm_rl.data.lines import shorten
from slurm_rl.data.placeholders import (
    ImageCounter,
    expand_placeholders,
    find_lost_characters,
    find_refused_characters,
)
from slurm_rl.data.prompts import Message, Text, refuse_lost
from slurm_rl.errors import DataError

_IMAGE_THREADS = 16


@dataclass(frozen=True)
class EncodedAnswer:
    token_ids: npt.NDArray[np.int64]
    answered: npt.NDArray[np.int64]
    """Ascending positions, none of them 0, of the assistant's tokens after the prompt, ends of turns included."""
    name: str = ""
    sources: tuple[str, ...] = ()
    """Images, one per placeholder; see data/images.py."""
    images: tuple[ImageSpan, ...] = ()
    """The same with the placeholder tokens of each, once expanded."""


def encode_answer(
    prompt: Text,
    answer: Text,
    tokenizer: Any,
    *,
    template: ChatTemplate | None,
    name: str,
    sees_images: bool = False,
    tools: Sequence[dict[str, Any]] = (),
) -> EncodedAnswer:
    """Encode one row; without a template both are plain text and the end-of-text token ends the answer.

    Args:
        sees_images: the template writes a placeholder per image.
        tools: schemas of the row's tools.

    Raises:
        DataError: the row cannot be rendered or loses words or tools, or the template never ends a turn.
    """
    if template is not None:
        messages = as_messages(prompt, "user"), as_messages(answer, "assistant")
        return _encode_chat(*messages, with_tools(template, tools, name), name, sees_images)
    if tools:
        raise DataError(
            f"{name}: tools need the chat template", seen="data.chat_template=false", action="data.chat_template=true"
        )
    prompt, answer = as_plain(prompt, answer, name)
    before, _ = tokenize_text(prompt, tokenizer, name, add_special_tokens=True)
    after, _ = tokenize_text(answer, tokenizer, name, add_special_tokens=False)
    token_ids = np.array([*before, *after, tokenizer.eos_token_id], dtype=np.int64)
    return EncodedAnswer(token_ids, np.arange(max(len(before), 1), len(token_ids)), name)


def expand_all(answers: Sequence[EncodedAnswer], counter: ImageCounter | None) -> list[EncodedAnswer]:
    """Return the answers with one token per image patch; `counter` is None for a text model."""
    if counter is None:
        return list(answers)
    # Most of the time goes into opening files, at once on a parallel file system.
    with ThreadPoolExecutor(_IMAGE_THREADS) as threads:
        return list(threads.map(lambda answer: _expand(answer, counter), answers))


def _expand(answer: EncodedAnswer, counter: ImageCounter) -> EncodedAnswer:
    token_ids, spans = expand_placeholders(answer.token_ids.tolist(), answer.sources, counter, answer.name)
    counts = np.ones(len(answer.token_ids), dtype=np.int64)
    counts[answer.token_ids == counter.image_token_id] = [span.num_tokens for span in spans]
    # New start of each token; the assistant's text contains no images.
    starts = np.cumsum(counts) - counts
    return replace(
        answer, token_ids=np.array(token_ids, dtype=np.int64), answered=starts[answer.answered], images=tuple(spans)
    )


def _encode_chat(
    prompt: list[Message], answer: list[Message], template: ChatTemplate, name: str, sees_images: bool
) -> EncodedAnswer:
    messages, tokenizer = [*prompt, *answer], template.tokenizer
    refuse_what_nobody_sees(messages, name, sees_images)
    text = template.render(messages, name, add_generation_prompt=False)
    token_ids, spans = tokenize_text(text, tokenizer, name, add_special_tokens=False)
    special = _special_ids(tokenizer)
    ends = [n for n, token in enumerate(token_ids) if token in special]
    answered: list[int] = []
    for number in range(len(prompt), len(messages)):
        if messages[number]["role"] == "assistant":
            span = find_answer(messages, number, text, template, name)
            end = _find_end(span, text, spans, ends, tokenizer, name)
            first = bisect_left(spans, (span.start,))
            answered += range(max(first, 1), end + 1)
    sources = tuple(list_images(messages, name))
    return EncodedAnswer(np.array(token_ids, dtype=np.int64), np.array(answered, dtype=np.int64), name, sources)


def refuse_what_nobody_sees(messages: list[Message], name: str, sees_images: bool) -> None:
    """Refuse images for a text model, which would silently read them as placeholders."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    kinds = [part.get("type", "text") for part in parts if isinstance(part, dict)]
    for kind in kinds:
        if kind != "text" and not (kind == "image" and sees_images):
            raise DataError(
                f"{name}: the model must support the content of the messages",
                seen=f"a part of type {kind!r}",
                action="for images choose a Qwen2.5-VL, Qwen3-VL or Qwen3.5 with task=sft or dpo; else remove the row",
            )


def _find_end(
    span: AnswerSpan, text: str, spans: Sequence[tuple[int, int]], ends: Sequence[int], tokenizer: Any, name: str
) -> int:
    """Return the index of the special token that ends the turn: the last one that always follows a turn, else the first
    one after the words."""
    after = [n for n in ends if spans[n][1] > span.stop]
    closing = [n for n in after if spans[n][1] <= span.closed]
    if closing:
        return closing[-1]
    if not after or text[span.stop : spans[after[0]][0]].strip():
        raise DataError(
            f"{name}: the chat template must end an assistant turn with a special token; otherwise the model "
            "does not learn to stop",
            seen=f"{shorten(repr(text[span.stop :]))} after the turn, and the special tokens "
            + ", ".join(tokenizer.all_special_tokens),
            action="let the template end the turn with the token that stops generation, or choose another model",
        )
    return after[0]


def _special_ids(tokenizer: Any) -> set[int]:
    return {n for n, t in tokenizer.added_tokens_decoder.items() if t.special} | set(tokenizer.all_special_ids)


def tokenize_text(
    text: str, tokenizer: Any, name: str, *, add_special_tokens: bool
) -> tuple[list[int], list[tuple[int, int]]]:
    if not tokenizer.is_fast:
        raise DataError(
            "answers need a fast tokenizer, which reports the character offsets of tokens",
            seen=type(tokenizer).__name__,
            action="add tokenizer.json to the model folder",
        )
    try:
        encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False)
        lost = find_lost_characters(text, encoded["input_ids"], encoded["offset_mapping"], tokenizer)
    except Exception:  # error of a tokenizer without an unknown token
        lost = find_refused_characters(text, tokenizer)
        if not lost:
            raise
    refuse_lost(name, text, lost)
    return encoded["input_ids"], encoded["offset_mapping"]


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
        return tokenize(_cut_end(text, _find_chat_end(messages, template, name), name) if truncated else text, False)
    prompt, answer = as_plain(prompt, answer, name)
    if is_rendered(prompt, tokenizer):
        chat: list[Message] = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        end = _find_chat_end(chat, ChatTemplate(tokenizer), name) if tokenizer.chat_template else tokenizer.eos_token
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


def _find_chat_end(messages: list[Message], template: ChatTemplate, name: str) -> str:
    marked = [*messages[:-1], {**messages[-1], "content": _MARK}]
    return template.render(marked, name, add_generation_prompt=False).rpartition(_MARK)[2]
