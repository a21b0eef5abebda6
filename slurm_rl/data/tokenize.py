"""Encode prompt rows as token ids; a character that would be lost is an error.

PromptRow(prompt="3+4=")  ->  EncodedPrompt(token_ids=[5, 12, 6, 13], text="3+4=")
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slurm_rl.algorithms.sequences import ImageSpan, TokenPrompt
from slurm_rl.config.data import Overlong
from slurm_rl.data.chat import NO_TEMPLATE, ChatTemplate, as_messages, begin_with_system, drop_sources
from slurm_rl.data.prompts import Message, PromptRow, refuse_lost, too_long
from slurm_rl.errors import DataError

if TYPE_CHECKING:
    from slurm_rl.data.placeholders import ImageCounter

_BATCH = 1024
"""Prompts encoded at once; offsets of a whole data set would not fit in memory."""

_IMAGE_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A prompt as rollout engine and policy read it."""

    index: int
    """Index of its row."""
    token_ids: list[int]
    text: str
    """Encoded text: the prompt, or the rendered chat template."""
    answer: str
    images: Sequence[ImageSpan] = ()
    """In the order of their placeholders."""
    messages: list[Message] | None = None
    """Chat of `text`, its images without their sources; None for plain text."""
    info: dict[str, Any] = field(default_factory=dict)
    """Further columns of the row, for an environment."""
    source: str = ""
    """Name in data.sources, if there are several."""

    @property
    def row_id(self) -> str:
        """Id of the row for any seed and order: `games/17`, or `17` without sources."""
        return f"{self.source}/{self.index}" if self.source else str(self.index)

    @cached_property
    def packed(self) -> array[int]:
        """`token_ids` as int32, which its episodes share."""
        return array("i", self.token_ids)

    @property
    def tokens(self) -> TokenPrompt:
        """Prompt for the rollout engine."""
        return TokenPrompt(token_ids=self.token_ids, images=self.images)


def encode_prompts(
    rows: Sequence[PromptRow],
    tokenizer: Any,
    *,
    template: ChatTemplate | None,
    max_prompt_tokens: int,
    context_length: int,
    max_tokens: int,
    overlong: Overlong = "refuse",
    images: ImageCounter | None = None,
    system: str | None = None,
    source: str = "",
) -> list[EncodedPrompt]:
    """Encode the rows, in order.

    Args:
        template: renders prompts; None: prompts are plain text.
        overlong: refuse or leave out prompts that do not fit; see DataConfig.
        images: counts image tokens of a vision-language model; None for a text model.
        system: see DataConfig; requires a template.

    Raises:
        DataError: a row cannot be rendered, loses characters, is too long, or has unreadable or unsupported images.
    """
    encoded: list[EncodedPrompt] = []
    if system is not None:
        rows = [replace(row, prompt=begin_with_system(row.prompt, system)) for row in rows]
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        prompts = _expand_images(batch, _encode_batch(batch, tokenizer, template), images)
        for row, prompt in zip(batch, prompts, strict=True):
            error = _find_misfit(row, prompt, max_prompt_tokens, max_tokens, context_length)
            if error is None:
                encoded.append(replace(prompt, source=source) if source else prompt)
            elif overlong == "refuse":
                raise error
    return encoded


def render_prompt(row: PromptRow, template: ChatTemplate | None) -> str:
    """Return the text to encode; with a template, a plain prompt becomes one user message."""
    text = row.prompt
    if template is not None and isinstance(text, str) and text.startswith(template.special_tokens):
        raise DataError(
            f"{row.name}: the prompt already contains the output of a chat template, which would be applied twice",
            seen=repr(text[:40]),
            action="set data.chat_template=false, or write the prompt as messages",
        )
    if template is not None:
        text = template.render(as_messages(text), row.name, add_generation_prompt=True)
    if not isinstance(text, str):
        raise DataError(
            f"{row.name}: a prompt that is a list of messages needs the chat template",
            seen=NO_TEMPLATE,
            action="choose a model with a chat template, or name a text column in data.input_key",
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{row.name}: a prompt must be valid Unicode",
            seen=f"half a surrogate pair at character {error.start}",
            action="correct the row",
        ) from None
    return text


def _encode_batch(rows: Sequence[PromptRow], tokenizer: Any, template: ChatTemplate | None) -> Iterator[EncodedPrompt]:
    from slurm_rl.data.placeholders import find_lost_characters, find_refused_characters

    texts = [render_prompt(row, template) for row in rows]
    try:
        batch = tokenizer(
            texts,
            add_special_tokens=template is None,
            return_offsets_mapping=tokenizer.is_fast,
            verbose=False,
        )
    except Exception:  # of a tokenizer without an unknown token; it does not name the row
        for row, text in zip(rows, texts, strict=True):
            refuse_lost(row.name, text, find_refused_characters(text, tokenizer))
        raise
    offsets = batch["offset_mapping"] if tokenizer.is_fast else [None] * len(rows)
    for row, text, token_ids, spans in zip(rows, texts, batch["input_ids"], offsets, strict=True):
        refuse_lost(row.name, text, find_lost_characters(text, token_ids, spans, tokenizer))
        yield EncodedPrompt(
            index=row.index,
            token_ids=list(token_ids),
            text=text,
            answer=row.answer,
            messages=None if template is None else drop_sources(as_messages(row.prompt)),
            info=row.info,
        )


def _expand_images(
    rows: Sequence[PromptRow], prompts: Iterator[EncodedPrompt], counter: ImageCounter | None
) -> Iterator[EncodedPrompt]:
    from slurm_rl.data.images import list_images

    sources = [list_images(row.prompt, row.name) for row in rows]
    if counter is None:
        for row, found in zip(rows, sources, strict=True):
            if found:
                raise DataError(
                    f"{row.name}: a prompt with images needs a vision-language model",
                    seen=f"{len(found)} images and a text-only model",
                    action="set model.path to a Qwen2.5-VL, Qwen3-VL or Qwen3.5, or remove the images",
                )
        return prompts
    # Most of the time goes into opening files, at once on a parallel file system.
    with ThreadPoolExecutor(_IMAGE_THREADS) as threads:
        expanded = threads.map(lambda row, prompt, found: _expand(row, prompt, found, counter), rows, prompts, sources)
        return iter(list(expanded))


def _expand(row: PromptRow, prompt: EncodedPrompt, sources: Sequence[str], counter: ImageCounter) -> EncodedPrompt:
    from slurm_rl.data.placeholders import expand_placeholders

    token_ids, spans = expand_placeholders(prompt.token_ids, sources, counter, row.name)
    return replace(prompt, token_ids=token_ids, images=tuple(spans))


def _find_misfit(
    row: PromptRow, prompt: EncodedPrompt, max_prompt_tokens: int, max_tokens: int, context_length: int
) -> DataError | None:
    """Return the error of a prompt that is too long; raise for an empty one."""
    num_tokens = len(prompt.token_ids)
    if num_tokens == 0:
        raise DataError(f"{row.name}: a prompt must have at least one token", seen="none", action="correct the row")
    if num_tokens > max_prompt_tokens:
        return too_long(row.name, prompt.text, num_tokens, max_prompt_tokens)
    if num_tokens + max_tokens > context_length:
        return DataError(
            f"{row.name}: prompt and completion must fit in the model's context of {context_length} tokens",
            seen=f"{num_tokens} + rollout.max_tokens {max_tokens} = {num_tokens + max_tokens}",
            action="lower rollout.max_tokens, set data.overlong_prompts=leave_out, or choose a model with a longer "
            "context",
        )
    return None
