"""Render chat templates. A template may read variables of its own, such as Qwen3's `enable_thinking`, which
data.chat_template_kwargs sets.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from slurm_rl.config.data import DataConfig
from slurm_rl.data.prompts import Message, Text
from slurm_rl.errors import DataError

_GIVEN = {"messages", "add_generation_prompt", "raise_exception", "strftime_now"}
"""Variables that transformers gives to every template, as it documents."""

NO_TEMPLATE = "no chat template: data.chat_template=false, or the tokenizer has none"


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template of a tokenizer with the variables of the config.

    Raises:
        DataError: the tokenizer has no template, or its template does not read a variable or render the tools.
    """

    tokenizer: Any
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        if not self.tokenizer.chat_template:
            raise DataError(
                "data.chat_template=true, data.system, data.chat_template_kwargs and env.tools need a tokenizer with a "
                "chat template",
                seen=f"{self.tokenizer.name_or_path or type(self.tokenizer).__name__} without one",
                action="use an instruction-tuned model, or set data.chat_template=false",
            )
        if self.variables:
            known = find_variables(self.tokenizer.get_chat_template())
            unknown = [name for name in self.variables if name not in known]
            if unknown:
                raise DataError(
                    "data.chat_template_kwargs must name variables that the chat template reads",
                    seen=f"{', '.join(unknown)}; it reads {', '.join(sorted(known)) or 'none'}",
                    action="correct or remove the name",
                )
        if self.tools:
            told, plain = (
                one.render([{"role": "user", "content": "?"}], "a prompt", add_generation_prompt=True)
                for one in (self, replace(self, tools=()))
            )
            names = [schema["function"]["name"] for schema in self.tools]
            unsaid = [name for name in names if told.count(name) <= plain.count(name)]
            if unsaid:
                raise DataError(
                    "tools need a chat template that lists them",
                    seen=f"nothing of {', '.join(unsaid)} in a prompt of {self.tokenizer.name_or_path or 'it'}",
                    action="choose a model trained to call tools, give its tokenizer such a template, or set "
                    "env.tools=null (of rows: data.tools_key=null)",
                )

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        return tuple(self.tokenizer.all_special_tokens)

    def render(self, messages: Sequence[Message], name: str, *, add_generation_prompt: bool) -> str:
        """Render the messages; raise DataError, with the row's name, if the template refuses them."""
        messages = convert_calls(messages, self.tokenizer, name)
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages,
                    tools=list(self.tools) or None,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self.variables,
                )
            )
        except Exception as error:  # a template can raise anything
            raise DataError(
                f"{name}: the tokenizer's chat template must accept the messages",
                seen=f"{type(error).__name__}: {error}",
                action="correct the roles and contents of the row",
            ) from error


def open_template(tokenizer: Any, config: DataConfig, tools: Sequence[dict[str, Any]] = ()) -> ChatTemplate | None:
    """Return the template to render with, or None if prompts are plain text."""
    needed = config.chat_template is True or config.chat_template_kwargs or config.system is not None or tools
    if not config.chat_template or not (needed or tokenizer.chat_template):
        return None
    return ChatTemplate(tokenizer, config.chat_template_kwargs, tools)


def is_rendered(prompt: str, tokenizer: Any) -> bool:
    """Return whether the text begins with a special token, as the output of a chat template does."""
    return any(prompt.startswith(token) for token in tokenizer.all_special_tokens)


def with_tools(template: ChatTemplate, tools: Sequence[dict[str, Any]], name: str) -> ChatTemplate:
    """Return the template with the tools of one row; raise DataError if it does not render them."""
    if not tools:
        return template
    try:
        return replace(template, tools=tools)
    except DataError as error:
        raise DataError(f"{name}: {error.rule}", seen=error.seen, action=error.action) from error


def as_plain(prompt: Text, answer: Text, name: str) -> tuple[str, str]:
    """Return both if they are text; raise DataError for messages."""
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise DataError(
            f"{name}: messages need the chat template",
            seen=NO_TEMPLATE,
            action="choose a model with a chat template, or write the rows as text",
        )
    return prompt, answer


def as_messages(text: Text, role: str = "user") -> list[Message]:
    """Return messages unchanged and plain text as one message."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def begin_with_system(prompt: Text, system: str) -> list[Message]:
    """Return the messages with a system message in front, unless they have one.

    >>> begin_with_system("Hi", "Be brief.")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]
    """
    messages = as_messages(prompt)
    return messages if messages[0]["role"] == "system" else [{"role": "system", "content": system}, *messages]


def drop_sources(messages: list[Message]) -> list[Message]:
    """Return the messages with only the type of each non-text part, which may contain image bytes."""
    return [
        {**message, "content": [_drop_source(part) for part in content]}
        if isinstance(content := message["content"], list)
        else message
        for message in messages
    ]


def _drop_source(part: Any) -> Any:
    kind = part.get("type", "text") if isinstance(part, dict) else "text"
    return part if kind == "text" else {"type": kind}


@cache
def find_variables(template: str) -> set[str]:
    """Return the free variables of a template, including those of special tokens.

    >>> find_variables("{% for m in messages %}{{ m.content }}{% endfor %}{% if thinking is defined %}!{% endif %}")
    {'thinking'}
    """
    from jinja2 import Environment, meta

    # A tag that transformers adds around the assistant's text.
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    return set(meta.find_undeclared_variables(parsed)) - _GIVEN


@dataclass(frozen=True)
class CallForm:
    """Form of a message that calls tools and has no text."""

    content: str | None
    is_text: bool
    """Whether the arguments are a string of JSON instead of an object."""


_FORMS = tuple(CallForm(content, is_text) for is_text in (False, True) for content in ("", None))
_PROBE = {"type": "function", "id": "call00000", "function": {"name": "probed_tool", "arguments": {"probed_key": "x"}}}
_SPOILED = ("'probed_key'", '\\"probed_key', "None")
"""Arguments as Python writes them or with escaped quotes, and a content of null as text."""


def convert_calls(messages: Sequence[Message], tokenizer: Any, name: str) -> Sequence[Message]:
    """Return the messages with tool calls in the form that the template reads; raise DataError if it reads none."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    form = _find_form(tokenizer, tokenizer.get_chat_template())
    if form is None:
        raise DataError(
            f"{name}: tool calls need a chat template that renders them",
            seen=f"a template of {tokenizer.name_or_path or 'the tokenizer'} that drops or refuses calls",
            action="choose a model trained to call tools, or remove the row",
        )
    return [_convert_message(message, form) for message in messages]


@lru_cache(maxsize=8)
def _find_form(tokenizer: Any, template: str) -> CallForm | None:
    question = {"role": "user", "content": "?"}
    for form in _FORMS:
        call = _convert_message({"role": "assistant", "content": None, "tool_calls": [_PROBE]}, form)
        try:
            text = tokenizer.apply_chat_template([question, call], chat_template=template, tokenize=False)
        except Exception:  # a template raises any error
            continue
        if "probed_tool" in text and "probed_key" in text and not any(sign in text for sign in _SPOILED):
            return form
    return None


def _convert_message(message: Message, form: CallForm) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [_convert_call(call, form) for call in message["tool_calls"]]
    return {**message, "content": message["content"] or form.content, "tool_calls": calls}


def _convert_call(call: dict[str, Any], form: CallForm) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": _convert_call(call["function"], form)}
    arguments = call.get("arguments", {})
    if isinstance(arguments, str) and not form.is_text:
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return call
    elif form.is_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "arguments": arguments}
