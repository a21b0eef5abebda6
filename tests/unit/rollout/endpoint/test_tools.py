"""Tools of a program, with OpenAI's own package and templates of real families.

A fake replaces vLLM's parser, which tests/train/test_tool_episodes.py uses.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.groups import Details, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.environment import ToolCall
from slurm_rl.rollout.agent_trajectory import AgentTrajectory
from slurm_rl.rollout.endpoint.conversation import DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Ask, Bounds, refuse_tools
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.tools import parse_tools
from tests.lock import ROOT
from tests.templates import ADD, build_tokenizer
from tests.unit.rollout.endpoint.kit import serving
from tests.unit.rollout.endpoint.test_server import client

RULE, BOUNDS = SamplingRule(1.0, 1.0, 200), Bounds(8, 4000)
QUESTION: Any = [{"role": "user", "content": "3 + 4?"}]
PROMPT = EncodedPrompt(index=0, token_ids=[1], text="?", answer="7")
TOOLS: Any = [ADD]
FLAT: Any = [{"type": "function", **ADD["function"]}]  # type: ignore[dict-item]


def called(a: object, name: str = "add") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {a}}}}}\n</tool_call>'


@dataclass
class Engine:
    """Return scripted replies in order, and parse calls in Qwen3's format."""

    replies: list[str]
    family: str = "qwen3"
    asked: list[Ask] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = build_tokenizer(self.family)

    @property
    def renderer(self) -> DialogueRenderer:
        return DialogueRenderer(self.tokenizer, ChatTemplate(self.tokenizer))

    def ask(self, ask: Ask) -> None:
        self.asked.append(ask)
        ask.done.set_result(complete(self.tokenizer, self.replies.pop(0), reads=ask.tools is not None))

    @property
    def contexts(self) -> list[str]:
        return [self.tokenizer.decode(ask.context) for ask in self.asked]


def complete(tokenizer: Any, text: str, *, reads: bool) -> Trajectory:
    """Return the engine's completion for a reply."""
    ids = tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"]
    content, *pieces = re.split(r"(?=<tool_call>)", text) if reads else [""]
    details = Details(content=content, calls=tuple(map(read, pieces)))
    return Trajectory(ids, [-1.0] * len(ids), text, False, 3, details)


def read(piece: str) -> ToolCall:
    try:
        tree = json.loads(piece.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        return ToolCall(tree["name"], json.dumps(tree["arguments"]))
    except ValueError:
        return ToolCall("", piece, error="malformed")


def test_call_and_result_continue_sampled_tokens() -> None:
    engine = Engine([f"hm{called(17)}", "It is 7."])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        choice = asks.create(model="any", messages=QUESTION, tools=TOOLS, tool_choice="auto").choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content == "hm"
        [call] = choice.message.tool_calls or []
        assert call.type == "function" and call.id == "call00000"
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 17})
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "7"}
        more: Any = [*QUESTION, choice.message.model_dump(exclude_none=True), result]
        last = asks.create(model="any", messages=more, tools=TOOLS).choices[0]
        assert last.message.content == "It is 7." and last.message.tool_calls is None and last.finish_reason == "stop"
        episode = endpoint.close("7.0.0")
    [branch] = episode.conversation.branches()
    # Only the text after the reply was rendered; before it are the sampled tokens.
    first, second = engine.asked
    assert second.context[: len(branch[0].token_ids)] == branch[0].token_ids and len(branch) == 2
    assert '"name": "add"' in engine.contexts[0] and "<tool_response>\n7\n</tool_response>" in engine.contexts[1]
    assert first.tools is not None and first.tools.parser == "hermes"
    template = ChatTemplate(engine.tokenizer, {}, TOOLS)
    sent = [*QUESTION, {**more[1], "tool_calls": [{"function": {"name": "add", "arguments": {"a": 17}}}]}, result]
    whole = template.render(sent, "?", add_generation_prompt=True)
    assert engine.contexts[1] == whole.replace("hm\n<tool_call>", "hm<tool_call>")
    completion = AgentTrajectory(0, 0, PROMPT, "7.0.0", episode=episode).completion()
    assert [(one.name, one.result, one.error) for one in completion.turns[0].calls] == [("add", "7", None)]


def test_stream_has_calls_as_collected_by_client() -> None:
    engine = Engine([called(1) + called(2)])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        with asks.stream(model="any", messages=QUESTION, tools=TOOLS) as stream:
            choice = stream.get_final_completion().choices[0]
    calls = choice.message.tool_calls or []
    assert [(one.id, json.loads(one.function.arguments)) for one in calls] == [
        ("call00000", {"a": 1}),
        ("call00001", {"a": 2}),
    ]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None


@pytest.mark.parametrize("streams", [False, True])
def test_responses_have_calls_as_items(streams: bool) -> None:
    engine = Engine([f"hm{called(17)}", "It is 7.", "It is 7."])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).responses
        words: Any = {"model": "any", "tools": FLAT}
        if streams:
            events = list(asks.create(input=QUESTION, stream=True, **words))
            deltas = [one.delta for one in events if one.type == "response.function_call_arguments.delta"]
            assert [json.loads(delta) for delta in deltas] == [{"a": 17}]
            response = next(one.response for one in events if one.type == "response.completed")
        else:
            response = asks.create(input=QUESTION, **words)
        message, call = response.output
        assert message.type == "message" and response.output_text == "hm"
        assert call.type == "function_call" and json.loads(call.arguments) == {"a": 17}
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        assert asks.create(input=[result], previous_response_id=response.id, **words).output_text == "It is 7."
        whole: Any = [*QUESTION, *(item.model_dump() for item in response.output), result]
        asks.create(input=whole, **words)
        branches = endpoint.close("7.0.0").conversation.branches()
    assert engine.contexts[1] == engine.contexts[2] and "<tool_response>\n7\n" in engine.contexts[1]
    assert sorted(map(len, branches)) == [1, 2]


def test_both_interfaces_share_dialogue_with_tools() -> None:
    engine = Engine([called(17), "7"])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        one = client(endpoint)
        [call] = one.responses.create(model="any", input=QUESTION, tools=FLAT).output
        assert call.type == "function_call"
        # A framework parses and serializes the arguments again.
        again = {"id": call.call_id, "type": "function", "function": {"name": "add", "arguments": '{ "a":17}'}}
        said: Any = {"role": "assistant", "content": None, "tool_calls": [again]}
        result: Any = {"role": "tool", "tool_call_id": call.call_id, "content": "7"}
        one.chat.completions.create(model="any", messages=[*QUESTION, said, result], tools=TOOLS)
        assert len(endpoint.close("7.0.0").conversation.branches()) == 1


def test_other_tools_start_new_dialogue() -> None:
    engine = Engine(["a", "b", "c"])
    more: Any = [*QUESTION, {"role": "assistant", "content": "a"}, {"role": "user", "content": "sure?"}]
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        asks.create(model="any", messages=QUESTION, tools=TOOLS)
        asks.create(model="any", messages=more)
        asks.create(model="any", messages=more, tools=TOOLS)
        branches = endpoint.close("7.0.0").conversation.branches()
    assert sorted(map(len, branches)) == [1, 2] and '"name": "add"' not in engine.contexts[1]


def test_tool_choice_none_returns_text() -> None:
    engine = Engine([called(17), called(17), called(1) + called(2)])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        text = asks.create(model="any", messages=QUESTION, tools=TOOLS, tool_choice="none").choices[0].message
        assert text.content == called(17) and text.tool_calls is None
        asks.create(model="any", messages=QUESTION, tools=TOOLS)
        one = asks.create(model="any", messages=QUESTION, tools=TOOLS, parallel_tool_calls=False).choices[0].message
        assert len(one.tool_calls or []) == 1
    assert engine.contexts[0] == engine.contexts[1] and engine.asked[0].tools is None


def test_malformed_call_is_text_and_errors_are_counted() -> None:
    bad = "<tool_call>{oops"
    engine = Engine([f"so {called(1)}{bad}", called(1, "sub") + called('"x"')])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        said = asks.create(model="any", messages=QUESTION, tools=TOOLS).choices[0].message
        assert said.content == f"so {bad}" and len(said.tool_calls or []) == 1
        both = asks.create(model="any", messages=QUESTION, tools=TOOLS).choices[0].message.tool_calls or []
        assert [one.function.name for one in both if one.type == "function"] == ["sub", "add"]
        episode = endpoint.close("7.0.0")
    completion = AgentTrajectory(0, 0, PROMPT, "7.0.0", episode=episode).completion()
    errors = [[call.error for call in turn.calls] for turn in completion.turns]
    assert sorted(errors, key=str) == [["unknown", "arguments"], [None, "malformed"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice must be auto or none"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": TOOLS}, "a forced call is not"),
        ({"tools": [{"type": "web_search"}]}, "a tool must be a function"),
        ({"tools": [{"type": "function", "function": {}}]}, "required field `name`"),
        ({"tools": [ADD, ADD]}, "distinct names"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]}, "JSON Schema"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://x/y"}}}]},
            "of the schema itself",
        ),
        ({"messages": [{"role": "tool", "tool_call_id": "call1", "content": "7"}]}, "of a call before it"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [3]}]},
            "got `int` - at `$.messages[0].tool_calls[0]`",
        ),
    ],
)
def test_unsupported_request_is_refused_without_sampling(words: dict[str, Any], said: str) -> None:
    engine = Engine([])
    refused = pytest.raises(openai.BadRequestError, match=re.escape(said))
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint, refused:
        client(endpoint, max_retries=0).chat.completions.create(**{"model": "any", "messages": QUESTION, **words})
    assert engine.asked == []


@pytest.mark.parametrize(("family", "why"), [("gemma3", "nothing of add"), ("gptoss", "env.tool_parser")])
def test_unsupported_template_feature_is_refused(family: str, why: str) -> None:
    engine = Engine(["fine"], family)
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint, max_retries=0).chat.completions
        with pytest.raises(openai.BadRequestError, match="chat template must list tools") as refused:
            asks.create(model="any", messages=QUESTION, tools=TOOLS)
        assert why in str(refused.value) and engine.asked == []
        asks.create(model="any", messages=QUESTION)


def test_missing_template_and_unfit_parser_are_refused() -> None:
    engine = Engine([])
    refused = pytest.raises(openai.BadRequestError, match=r"data\.chat_template=false")
    with serving(engine, RULE, BOUNDS, DialogueRenderer(engine.tokenizer, None)) as endpoint, refused:
        client(endpoint).chat.completions.create(model="any", messages=QUESTION, tools=TOOLS)

    class Blind(Engine):
        def ask(self, ask: Ask) -> None:
            ask.done.set_exception(refuse_tools("hermes reads nothing"))

    refused = pytest.raises(openai.BadRequestError, match="hermes reads nothing")
    with serving(Blind([]), RULE, BOUNDS, engine.renderer) as endpoint, refused:
        client(endpoint).chat.completions.create(model="any", messages=QUESTION, tools=TOOLS)


def test_schemas_of_client_libraries_are_accepted() -> None:
    properties: Any = {"a": {"type": ["integer", "null"]}, "b": {"$ref": "#/$defs/Item"}, "c": True, "d": {"enum": [1]}}
    defined = {"Item": {"type": "object", "properties": {"of": {"$ref": "#/$defs/Item"}}}}
    tool: Any = {"name": "f", "strict": True, "parameters": {"properties": properties, "$defs": defined}}
    engine = Engine([called(1, "f"), called('{"of": 1}, "b": {"of": {"of": 3}}', "f"), called(1, "now")])
    with serving(engine, RULE, BOUNDS, engine.renderer) as endpoint:
        asks = client(endpoint).chat.completions
        for _ in range(2):
            assert asks.create(model="any", messages=QUESTION, tools=[{"type": "function", "function": tool}])
        nothing: Any = {"type": "function", "function": {"name": "now"}}
        assert asks.create(model="any", messages=QUESTION, tools=[nothing]).choices[0].message.tool_calls
        episode = endpoint.close("7.0.0")
    completion = AgentTrajectory(0, 0, PROMPT, "7.0.0", episode=episode).completion()
    assert sorted(str(turn.calls[0].error) for turn in completion.turns) == ["None", "arguments", "arguments"]


def test_strict_and_other_keys_of_schema_reach_no_template() -> None:
    [schema] = parse_tools([{"type": "function", "function": {"name": "f", "strict": True, "parameters": None}}])
    assert set(schema["function"]) == {"name", "description", "parameters"}


def test_convert_of_new_class_is_thread_safe() -> None:
    """Uses a separate process: without the lock, msgspec crashes with SIGSEGV."""
    module = "tests.unit.rollout.endpoint.convert_in_threads"
    assert subprocess.run([sys.executable, "-m", module], cwd=ROOT, timeout=120).returncode == 0
