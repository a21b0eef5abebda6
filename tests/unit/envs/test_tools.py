import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step, ToolCall
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.schemas import Schema, build_schema, read_schemas
from slurm_rl.envs.tools import bind_tools, load_tools, read_arguments
from slurm_rl.envs.worker import Call, Snapshot
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.results import Failure

FILE = Path(__file__).with_name("my_tools.py")


def config(spec: str, **more: float) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate({"tools": spec, "timeout_s": 4.0, "tool_timeout_s": 0.5, **more})


def call(episode: str, *calls: ToolCall, text: str = "", content: str = "", answer: str = "") -> Call:
    reply = Reply(text=text, content=content, calls=calls)
    return Call(episode=episode, row=Row(index=0, prompt="?", answer=answer), seed=1, replies=[reply])


def said(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    # Not the whole file: it contains a function without a docstring.
    spec = config(f"{FILE}:MINE")
    with EnvironmentPool(spec, read_schemas(spec)) as pool:
        yield pool


def told(name: str) -> list[Schema]:
    """Read the tools in this process, which saves a process start."""
    return [build_schema(name, tool) for name, tool in bind_tools(load_tools(f"{FILE}:{name}"))[1].items()]


def test_functions_are_described_by_signature_and_docstring(pool: EnvironmentPool) -> None:
    [add, wait, _] = pool.schemas
    number = {"type": "integer", "description": "First number."}
    assert add == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": number, "b": {**number, "description": "Second number."}},
                "required": ["a"],
            },
        },
    }
    assert wait["function"]["name"] == "wait"


def test_class_is_described_by_public_methods_without_hooks() -> None:
    assert [schema["function"]["name"] for schema in told("Cart")] == ["put"]


@pytest.mark.parametrize(("name", "word"), [("*", "untold.*docstring"), ("nobody", "has no attribute 'nobody'")])
def test_undescribable_tool_is_refused(name: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_schemas(config(f"{FILE}:{name}"))


def test_file_offers_all_its_functions() -> None:
    assert config("mine.py").tools == "mine.py:*"
    assert list(load_tools(f"{FILE}:*")) == ["add", "wait", "misbehave", "untold"]


def test_calls_are_answered_in_order_as_tool_messages(pool: EnvironmentPool) -> None:
    [step] = pool.play([call("a", said("add", a=3, b=4), said("wait", seconds=0))])
    assert isinstance(step, Step) and not step.done and step.reward is None
    assert step.observation == [
        {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "7"},
        {"role": "tool", "name": "wait", "tool_call_id": "call00001", "content": '{"waited": 0}'},
    ]
    assert [(one.result, one.error) for one in step.calls] == [("7", None), ('{"waited": 0}', None)]


def test_reply_without_call_is_answer(pool: EnvironmentPool) -> None:
    assert pool.play([call("a", text="7", content="7")]) == [Step("", None, True)]


@pytest.mark.parametrize(
    ("wrong", "cause", "word"),
    [
        (said("subtract", a=3), "unknown", "there is no tool 'subtract'. There are: add, wait, misbehave"),
        (said("add", a="3"), "arguments", "a: '3' is not of type 'integer'"),
        (said("add", a=3, c=3), "arguments", "'c' was unexpected"),
        (said("misbehave", way="sing"), "arguments", "'sing' is not"),
        (ToolCall("add", '{"a": 3'), "arguments", "no JSON"),
        (said("misbehave", way="raise"), "exception", "KeyError: 'no such door'"),
        (said("misbehave", way="exit"), "exception", "SystemExit: 3"),
        (said("misbehave", way="circle"), "exception", "ValueError: Circular reference"),
        (said("wait", seconds=60), "late", "no answer within 0.5 s"),
        (ToolCall("", "<tool_call>{", error="malformed"), "malformed", "could not be read"),
        (ToolCall("", "<tool_call>{", error="cut"), "cut", "cut off by the length limit"),
        (ToolCall("", "<tool_call>", error="thinking"), "thinking", "inside a thought is not executed"),
    ],
)
def test_wrong_call_is_reported_to_policy_without_side_effects(
    pool: EnvironmentPool, wrong: ToolCall, cause: str, word: str
) -> None:
    [step] = pool.play([call("a", wrong, said("add", a=3))])
    assert isinstance(step, Step) and not step.done
    assert [one.error for one in step.calls] == [cause, None]
    assert word in step.calls[0].result and step.calls[0].result.startswith("Error: ")
    assert isinstance(step.observation, list)
    assert [one["content"] for one in step.observation] == [step.calls[0].result, "4"]


@pytest.mark.parametrize(
    ("way", "word"),
    [("surrogate", "?"), ("long", "(200,000 characters)"), ("object", "\"<class 'object'>\""), (None, "null")],
)
def test_results_are_converted_to_text(pool: EnvironmentPool, way: str | None, word: str) -> None:
    [step] = pool.play([call("a", said("misbehave", way=way))])
    assert isinstance(step, Step) and step.calls[0].error is None and step.calls[0].result.endswith(word)


@pytest.mark.parametrize(("way", "cause"), [("block", "hang"), ("die", "crash")])
def test_tool_that_kills_process_fails_only_its_episode(pool: EnvironmentPool, way: str, cause: str) -> None:
    bad, good = pool.play([call("a", said("misbehave", way=way)), call("b", said("add", a=3))])
    assert isinstance(bad, Failure) and bad.cause == cause
    assert isinstance(good, Step) and good.calls[0].result == "4"


def test_call_in_thought_with_answer_is_answer(pool: EnvironmentPool) -> None:
    thought = ToolCall("", "<tool_call>", error="thinking")
    assert pool.play([call("a", thought, content="7")]) == [Step("", None, True, calls=(thought,))]


def test_episodes_have_separate_state() -> None:
    spec = config(f"{FILE}:Cart")
    with EnvironmentPool(spec, told("Cart")) as pool:
        steps = pool.play([call(name, said("put", thing=name), answer="bag") for name in "ab"])
        assert [step.calls[0].result for step in steps if isinstance(step, Step)] == ['["bag", "a"]', '["bag", "b"]']
        first = call("a", said("put", thing="a"), answer="bag")
        answer = Call(episode="a", row=first.row, seed=1, replies=[*first.replies, Reply(text="2", content="2")])
        assert pool.play([answer]) == [Step("", 1.0, True)]


def test_snapshot_restores_state() -> None:
    spec = config(f"{FILE}:SavedCart")
    assert [schema["function"]["name"] for schema in told("SavedCart")] == ["put"]
    first = call("a", said("put", thing="a"), answer="bag")
    with EnvironmentPool(spec, told("SavedCart")) as pool:
        [answer] = pool.ask([first])
        assert answer.snapshot == b'["bag", "a"]'
    second = first._replace(replies=[*first.replies, Reply(text="9", content="9")])
    with EnvironmentPool(spec, told("SavedCart")) as pool:
        # Stale state would show: the other episode has nine items.
        assert pool.play([second._replace(snapshot=Snapshot(1, b"[1, 2, 3, 4, 5, 6, 7, 8, 9]"))]) == [
            Step("", 1.0, True)
        ]


def test_null_needs_optional_type() -> None:
    number = {"type": "object", "properties": {"a": {"type": "integer", "nullable": True}, "b": {"type": "integer"}}}
    assert read_arguments('{"a": null, "b": 1}', number)[0] is None
    assert read_arguments('{"a": null, "b": null}', number)[0] == "b: None is not of type 'integer'"


@pytest.fixture(scope="module")
def python_pool() -> Iterator[EnvironmentPool]:
    schemas = [build_schema(name, tool) for name, tool in load_tools("python").items()]
    assert schemas[0]["function"]["parameters"]["required"] == ["code"]
    with EnvironmentPool(EnvironmentConfig(tools="python", timeout_s=60.0), schemas) as pool:
        yield pool


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("print(sum(range(10)))", "45\n"),
        ("print('a')\n1 / 0", "a\n\nZeroDivisionError: division by zero"),
        ("open('/etc/passwd')", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("print('x' * 100_000)", "printed more than 10,000 bytes"),
        ("while True: pass", "ended after 4 s"),
    ],
)
def test_code_runs_in_sandbox_and_returns_output(python_pool: EnvironmentPool, code: str, seen: str) -> None:
    [step] = python_pool.play([call(code, said("python", code=code))])
    assert isinstance(step, Step) and step.calls[0].error is None and seen in step.calls[0].result


def test_calls_share_no_state(python_pool: EnvironmentPool) -> None:
    [step] = python_pool.play([call("kept", *(said("python", code=code) for code in ("x = 3", "print(x)")))])
    assert isinstance(step, Step) and "NameError" in step.calls[1].result
