"""Tools: `env.tools=file.py` makes an environment from functions or from a class.

    def multiply(a: int, b: int) -> int:            # a tool; its schema comes from signature and docstring
        \"\"\"Multiply two numbers.

        Args:
            a: One of them.
            b: The other.
        \"\"\"
        return a * b

    class Shop:                                      # env.tools=file.py:Shop, one instance per episode
        def reset(self, row, seed): self.cart = []   # optional, as Environment.reset
        def add(self, item: str) -> str: ...         # a tool; so are all methods but _private ones and hooks
        def score(self, reply): return 1.0           # optional: reward of the answer
        def snapshot(self): ...                      # with resume = "snapshot", as in Environment
        def restore(self, row, data): ...

rollout/vllm/tool_calls.py parses the calls. A reply without a call is the answer and ends the episode.
A wrong call is reported to the policy and counted (`ToolError`); it never fails the episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.registry import TOOLS
from slurm_rl.config.user_files.load import load_file, load_function
from slurm_rl.data.lines import shorten
from slurm_rl.envs.environment import Environment, Reply, Row, Step, ToolCall, ToolError
from slurm_rl.errors import SlurmRLError

Tools = Mapping[str, Callable[..., Any]]

_HOOKS = ("reset", "score", "snapshot", "restore")
_LONGEST_CHARS = 100_000
"""Largest result, in characters."""
_SHOWN_CHARS = 300

_ADVICE: Mapping[ToolError, str] = {
    "malformed": "the call could not be read. Use exactly the format of the instructions",
    "cut": "the call was cut off by the length limit. Write less before it",
    "thinking": "a call inside a thought is not executed. Write it after the thought",
}


def load_tools(spec: str) -> Any:
    """Return the functions or the class that env.tools names; raise ValueError if there is no tool."""
    if spec.endswith(":*"):
        found: Any = load_file(spec)
    else:
        found = load_function(TOOLS[spec].function if spec in TOOLS else spec)
    tools = found if isinstance(found, type) else _by_name(found)
    if not (list_methods(tools) if isinstance(tools, type) else tools):
        raise ValueError(f"{spec} has no function that can be a tool")
    return tools


def _by_name(found: Any) -> Tools:
    if isinstance(found, ModuleType):
        names = getattr(found, "__all__", None)
        own = names if names is not None else [name for name, value in vars(found).items() if _is_own(value, found)]
        return {name: getattr(found, name) for name in own}
    functions = found if isinstance(found, list | tuple) else [found]
    return {function.__name__: function for function in functions}


def _is_own(value: Any, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def list_methods(cls: type) -> list[str]:
    """Return the names of the methods that are tools, in the order of the class."""
    names = [name for base in reversed(cls.__mro__) for name in vars(base)]
    return [
        name
        for name in dict.fromkeys(names)
        if not name.startswith("_") and name not in _HOOKS and inspect.isfunction(getattr(cls, name))
    ]


def bind_tools(tools: Any) -> tuple[Any, Tools]:
    """Return the state of an episode (None for functions) and its callable tools."""
    if not isinstance(tools, type):
        return None, tools
    state = tools()
    return state, {name: getattr(state, name) for name in list_methods(tools)}


@dataclass(frozen=True)
class MakeToolEnvironment:
    """Environments over the same tools."""

    tools: Any
    schemas: Sequence[dict[str, Any]]
    timeout_s: float
    version: str
    """As `Environment.version`; "" for the hash of the file."""

    @classmethod
    def of(cls, config: EnvironmentConfig, schemas: Sequence[dict[str, Any]]) -> MakeToolEnvironment:
        assert config.tools is not None
        tools = load_tools(config.tools)
        version = config.tools if config.tools in TOOLS else str(getattr(tools, "version", ""))
        return cls(tools, schemas, config.tool_timeout_s, version)

    def __call__(self) -> ToolEnvironment:
        return ToolEnvironment(*bind_tools(self.tools), self.schemas, self.timeout_s)


class ToolEnvironment(Environment):
    """Answers calls until there are none."""

    def __init__(self, state: Any, tools: Tools, schemas: Sequence[dict[str, Any]], timeout_s: float) -> None:
        self.state, self.tools, self.timeout_s = state, tools, timeout_s
        self.schemas = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}

    async def reset(self, row: Row, seed: int) -> None:
        if hasattr(self.state, "reset"):
            await resolve(self.state.reset(row, seed))

    def snapshot(self) -> bytes:
        found: bytes = self.state.snapshot()
        return found

    def restore(self, row: Row, data: bytes) -> None:
        self.state.restore(row, data)

    async def step(self, reply: Reply) -> Step:
        # A call inside the thinking does not count if an answer follows.
        answers = bool(reply.content.strip())
        made = [call for call in reply.calls if call.error != "thinking" or not answers]
        if not made:
            reward = await resolve(self.state.score(reply)) if hasattr(self.state, "score") else None
            return Step(reward=reward, done=True, calls=reply.calls)
        # In order: a method may depend on the previous call.
        answered = [await self._answer(call) for call in made]
        rest = [call for call in reply.calls if call not in made]
        return Step([_message(place, call) for place, call in enumerate(answered)], calls=(*answered, *rest))

    async def _answer(self, call: ToolCall) -> ToolCall:
        error, why, arguments = check_call(call, self.schemas)
        if error is not None:
            return _refuse(call, error, why)
        try:
            async with asyncio.timeout(self.timeout_s) as deadline:
                result = render_result(await resolve(self.tools[call.name](**arguments)))
        except SlurmRLError:
            raise  # of the sandbox that cannot hold, and nothing that the policy did
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                return _refuse(call, "late", f"no answer within {self.timeout_s:g} s")
            return _refuse(call, "exception", f"{type(error).__name__}: {error}")
        return replace(call, result=result)


def check_call(call: ToolCall, schemas: Mapping[str, Any]) -> tuple[ToolError | None, str, dict[str, Any]]:
    """Return the error of a call with its text for the policy, and the arguments; `schemas` are by tool."""
    if call.error is not None:
        return call.error, _ADVICE[call.error], {}
    if call.name not in schemas:
        return "unknown", f"there is no tool {call.name!r}. There are: {', '.join(schemas)}", {}
    wrong, arguments = read_arguments(call.arguments, schemas[call.name])
    return ("arguments", wrong, {}) if wrong is not None else (None, "", arguments)


def read_arguments(text: str, schema: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the error of the arguments, and the arguments.

    >>> number = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    >>> read_arguments('{"a": 3}', number), read_arguments('{"a": "3"}', number)[0]
    ((None, {'a': 3}), "a: '3' is not of type 'integer'")
    """
    import jsonschema
    from referencing.exceptions import Unresolvable

    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"the arguments are no JSON: {error}", {}
    found = jsonschema.Draft202012Validator(_strict(schema)).iter_errors(arguments)
    try:
        wrong = min(found, key=lambda one: list(map(str, one.path)), default=None)
    except (Unresolvable, RecursionError) as error:  # a schema with a missing or recursive reference
        return f"nothing fits the schema: {type(error).__name__}: {error}", {}
    if wrong is not None:
        where = ".".join(map(str, wrong.path))
        return f"{where + ': ' if where else ''}{shorten(wrong.message, _SHOWN_CHARS)}", {}
    return None, arguments


def _strict(schema: Any) -> Any:
    """Return the schema without the liberties of JSON Schema that a Python function does not take."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if strict.pop("nullable", False):
        return {"anyOf": [strict, {"type": "null"}]}
    return {"additionalProperties": False, **strict} if "properties" in strict and "type" in strict else strict


def render_result(result: Any) -> str:
    """Return a result as text: strings unchanged, otherwise JSON, otherwise repr.

    >>> render_result("7"), render_result({"sum": 7}), render_result(None)
    ('7', '{"sum": 7}', 'null')
    """
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False, default=str)
    text = result.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST_CHARS else f"{text[:_LONGEST_CHARS]} ... ({len(text):,} characters)"


def _refuse(call: ToolCall, error: ToolError, why: str) -> ToolCall:
    plain = why.encode("utf-8", "replace").decode()
    return replace(call, error=error, result=f"Error: {shorten(plain, _SHOWN_CHARS)}")


def _message(place: int, call: ToolCall) -> dict[str, Any]:
    # Some templates need the tool name with a result, some a call id of exactly nine characters.
    return {"role": "tool", "name": call.name, "tool_call_id": f"call{place:05d}", "content": call.result}


async def resolve(value: Awaitable[Any] | Any) -> Any:
    """Return the value, or the result of awaiting it."""
    return await value if inspect.isawaitable(value) else value
