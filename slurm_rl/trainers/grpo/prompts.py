"""Load, check and tokenize all prompts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source, set_key
from slurm_rl.data.chat import ChatTemplate, begin_with_system, open_template
from slurm_rl.data.groups import Prompts
from slurm_rl.data.load_data import load_prompts, load_set
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.split import RowCounts, count_rows
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.errors import ConfigError, DataError
from slurm_rl.models.model_folder import load_context

if TYPE_CHECKING:
    from slurm_rl.data.placeholders import ImageCounter
    from slurm_rl.data.tool_syntax import ToolSyntax
    from slurm_rl.envs.schemas import Schema


class PromptEncoder:
    """Encodes rows of any source for one model."""

    def __init__(self, config: RunConfig, model_path: str) -> None:
        from slurm_rl.models.load_model import load_tokenizer
        from slurm_rl.models.vision import load_image_reader

        self.tokenizer = load_tokenizer(model_path, trust_remote_code=config.model.trust_remote_code)
        self.template = open_template(self.tokenizer, config.data)
        """Without tools."""
        self.context_length: int = load_context(model_path, config.model)
        self.images: ImageCounter | None = load_image_reader(model_path, config.model)
        self.model_path = model_path

    def encode(
        self, rows: Sequence[PromptRow], config: RunConfig, source: str = "", tools: Sequence[Schema] = ()
    ) -> list[EncodedPrompt]:
        """Encode rows.

        Args:
            tools: tool schemas in the prompt.

        Raises:
            DataError: a row is invalid or does not fit; see `encode_prompts`.
        """
        data = config.data
        if data.image_key is not None and self.images is None:
            raise DataError(
                "data.image_key needs a vision-language model",
                seen=f"{data.image_key!r} and {self.model_path}",
                action="choose a Qwen2.5-VL, Qwen3-VL or Qwen3.5, or set data.image_key=null",
            )
        return encode_prompts(
            rows,
            self.tokenizer,
            template=self.template if not tools else open_template(self.tokenizer, data, tools),
            max_prompt_tokens=data.max_prompt_tokens,
            context_length=self.context_length,
            max_tokens=config.rollout.max_tokens,
            overlong=data.overlong_prompts,
            images=self.images,
            system=data.system,
            source=source,
        )


def prepare_prompts(config: RunConfig, model_path: str) -> tuple[Prompts, RowCounts]:
    """Load, check and tokenize all rows."""

    from slurm_rl.envs.schemas import read_schemas
    from slurm_rl.rollout.chat_template_check import check_turns

    encoder = PromptEncoder(config, model_path)
    all_prompts, counts = Prompts([], [], []), RowCounts(train=0, held_out=0, overlapping=0, overlong=0)
    for name, one in ({} if config.eval.only else each_source(config)).items():
        split = load_prompts(one.data, with_info=one.env.is_on)
        tools = all_prompts.schemas[name] = read_schemas(one.env)
        check_turns(one, model_path, encoder.tokenizer, tools)
        train, held_out = (encoder.encode(rows, one, name, tools) for rows in (split.train, split.held_out))
        counts += count_rows(split, len(train), len(held_out))
        all_prompts.train += train
        all_prompts.held_out += held_out
        if config.warmup.num_steps:
            by_index = {row.index: row for row in split.train}
            all_prompts.answers += encode_answers(
                [by_index[prompt.index] for prompt in train],
                encoder.tokenizer,
                template=encoder.template,
                system=one.data.system,
                sees_images=encoder.images is not None,
                tools=tools,
            )
    for name, one in each_set(config).items():
        tools = all_prompts.schemas[set_key(name)] = read_schemas(one.env)
        check_turns(one, model_path, encoder.tokenizer, tools)
        rows = load_set(one.data, config.eval.sets[name].num_rows, with_info=one.env.is_on)
        all_prompts.sets[name] = encoder.encode(rows, one, "", tools)
    if encoder.images is not None:
        all_prompts.max_images = max(len(prompt.images) for prompt in all_prompts.all_rows)
    if all_prompts.max_images and config.has_async_engines:
        raise ConfigError(
            "rollout.inflight_weight_updates and env.schedule=async support text only: completions in flight "
            "would keep features of the old vision tower",
            seen=f"prompts with up to {all_prompts.max_images} images",
            action="set rollout.inflight_weight_updates=false and env.schedule=lockstep",
        )
    all_prompts.tools = _find_syntax(config, all_prompts.schemas, encoder.tokenizer)
    return all_prompts, counts


def _find_syntax(config: RunConfig, schemas: Mapping[str, Sequence[Schema]], tokenizer: Any) -> ToolSyntax | None:
    """Return the syntax of tool calls, which is the same for all sources."""

    from slurm_rl.data.tool_syntax import ToolSyntax

    known = {schema["function"]["name"]: schema for some in schemas.values() for schema in some}
    parts = (*each_source(config).values(), *each_set(config).values())
    parsers = {one.env.tool_parser for one in parts if one.env.tools is not None}
    if len(parsers) > 1:
        raise ConfigError(
            "env.tool_parser must be the same for all sources, since a model has one format for calls",
            seen=", ".join(sorted(map(str, parsers))),
            action="give all of them the same, or none",
        )
    template = open_template(tokenizer, config.data, [*known.values()])
    return ToolSyntax.of(template, *parsers) if template is not None and known else None


def encode_answers(
    rows: Sequence[PromptRow],
    tokenizer: Any,
    *,
    template: ChatTemplate | None,
    system: str | None = None,
    sees_images: bool = False,
    tools: Sequence[Schema] = (),
) -> list[list[int]]:
    """Return the token ids of each reference answer with its end, as in SFT.

    Raises:
        DataError: the chat template or the tokenizer loses a part of an answer; the message names the row.
    """

    from slurm_rl.data.encode_answers import encode_answer

    encoded = []
    for row in rows:
        prompt = row.prompt if system is None else begin_with_system(row.prompt, system)
        answer = encode_answer(
            prompt, row.answer, tokenizer, template=template, name=row.name, sees_images=sees_images, tools=tools
        )
        encoded.append(answer.token_ids[answer.answered].tolist())
    return encoded
