"""Invalid input at every interface of an episode fails only its request, episode or process."""

import json
import threading
from concurrent.futures import Future
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl.envs.environment import Step, ToolCall
from slurm_rl.envs.steps import Answer, Said, check_step, decode, encode, pack_answer
from slurm_rl.envs.worker_process import WorkerProcess
from slurm_rl.errors import RewardError
from slurm_rl.rewards.protocol import RequestError, parse_answer
from slurm_rl.rewards.results import Failure, RewardItem
from slurm_rl.rewards.values import is_name
from slurm_rl.rollout.endpoint.episode import Call
from slurm_rl.rollout.endpoint.programs import Verdict, parse_verdict, read_verdict
from slurm_rl.rollout.endpoint.requests import SamplingRule, parse_body, parse_chat
from slurm_rl.rollout.endpoint.residents import Resident
from slurm_rl.rollout.endpoint.responses import parse_response
from slurm_rl.run_dir.wire import Wire
from tests.unit.fuzz.values import json_values, mangled

RULE = SamplingRule(1.0, 1.0, 8)
_WORDS = ["text", "function", "user", "assistant", "tool", "message", "function_call", "function_call_output", "f", "a"]
_LEAVES = st.sampled_from(_WORDS) | st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3)
_KEYS = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "name",
        "function",
        "arguments",
        "tool_calls",
        "tool_call_id",
        "call_id",
        "id",
        "output",
        "format",
        "include_usage",
        "parameters",
    ]
)
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=12
)
_MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]) | _TREES, "content": _TREES})
_TOP = st.sampled_from(
    [
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "logprobs",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "temperature",
        "instructions",
        "max_output_tokens",
        "previous_response_id",
        "text",
        "metadata",
        "response_format",
    ]
)
_BODIES = st.builds(
    lambda messages, rest: {"messages": messages, "input": messages, **rest},
    st.lists(_MESSAGES | _TREES, max_size=3) | _TREES,
    st.dictionaries(_TOP, _TREES | json_values(4), max_size=2),
)
_BAD = [
    {"messages": [{"role": "user", "content": "?"}], "stream_options": []},
    {"messages": [{"role": "user", "content": "?"}], "stream_options": "x"},
    {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]},
    {"messages": [{"role": "tool", "content": "?", "tool_call_id": ["x"]}]},
    {"input": "?", "text": []},
    {"input": "?", "previous_response_id": []},
    {"input": [{"type": "function_call_output", "call_id": ["x"], "output": "?"}]},
]


def _ask(tree: Any) -> list[Any]:
    found = []
    body = {key: value for key, value in tree.items() if key != "input"}
    other = {key: value for key, value in tree.items() if key != "messages"}
    for parse in (
        lambda: parse_chat(parse_body(json.dumps(body).encode()), RULE),
        lambda: parse_response(parse_body(json.dumps(other).encode()), RULE, {}),
    ):
        try:
            found.append(parse())
        except RequestError as error:
            found.append(error.status)
    return found


@settings(max_examples=120, derandomize=True)
@given(_BODIES)
def test_parse_reads_or_refuses_any_body_with_400(tree: dict[str, Any]) -> None:
    for one in _ask(tree):
        assert one == 400 or one.messages


def test_parse_refuses_recorded_attacks() -> None:
    assert [_ask(tree) for tree in _BAD] == [[400, 400]] * len(_BAD)


@settings(max_examples=100, derandomize=True)
@given(st.binary(max_size=60) | json_values(3).map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"messages": [], "n": 1%s}' % (b"0" * 5000))
def test_parse_body_refuses_any_bytes(body: bytes) -> None:
    try:
        assert isinstance(parse_body(body), dict)
    except RequestError as error:
        assert error.status == 400


@settings(max_examples=100, derandomize=True)
@given(st.text(max_size=9) | st.sampled_from(["\xb2", "9" * 5000, "\u0663", "-1", " 1"]))
def test_call_reads_any_retry_count(retries: str) -> None:
    assert Call.of({"x-stainless-retry-count": retries}, b"").num_retries >= 0


@settings(max_examples=100, derandomize=True)
@given(json_values(6), json_values(6))
@example(10**400, {})
@example(1, {"\ud800": 1})
@example(1, {"a": 10**400})
def test_read_verdict_returns_numbers_or_failure(reward: Any, scores: Any) -> None:
    for found in (read_verdict({"reward": reward, "scores": scores}), parse_verdict(json.dumps({"reward": reward}))):
        assert isinstance(found, Verdict | Failure)
        if isinstance(found, Verdict):
            assert all(is_name(name) and type(value) is float for name, value in found.scores.items())
            assert found.reward is None or abs(found.reward) <= 1e15


@settings(max_examples=120, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(["episode", "reward", "scores", "error"]), json_values(4)).map(json.dumps)
    | st.text(max_size=20)
)
@example('{"episode": ["x"], "reward": 1}')
@example('{"episode": "a", "reward": 1%s}' % ("0" * 400))
def test_resident_line_fails_at_most_its_episode(line: str) -> None:
    resident = object.__new__(Resident)
    resident._lock = threading.Lock()
    resident._waiting = {name: Future[Verdict | Failure]() for name in ("a", "b")}
    resident._take(line)
    assert "b" in resident._waiting or '"b"' in line
    resident._take('{"episode": "b", "reward": 1}')
    assert "b" not in resident._waiting


_VALUES = json_values(5) | st.binary(max_size=3) | st.just(10**400) | st.just(object())
_STEPS = st.builds(
    Step,
    _VALUES | st.text(max_size=3) | st.lists(st.fixed_dictionaries({"role": st.text(), "content": st.text()})),
    *(_VALUES, st.booleans() | _VALUES, st.dictionaries(st.text(max_size=3), _VALUES, max_size=2) | _VALUES),
    st.lists(st.builds(ToolCall, _VALUES, st.text(max_size=3)), max_size=2).map(tuple) | _VALUES,
    st.none() | st.text(max_size=3) | _VALUES,
    st.booleans() | _VALUES,
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2) | _VALUES,
)


@settings(max_examples=100, derandomize=True)
@given(_STEPS)
def test_step_arrives_unchanged_or_as_failure(step: Any) -> None:
    outcome = check_step(step)
    [answer] = decode(encode(Said([pack_answer(Answer("a", outcome))]))).read()
    assert answer.episode == "a"
    assert answer.outcome == outcome or "cannot be sent" in answer.outcome.detail


_GOOD = encode(Said([pack_answer(Answer("a", Step("x", 1.0, scores={"b": 2.0}))), pack_answer(Answer("b", Step()))]))


@settings(max_examples=100, derandomize=True)
@given(mangled(_GOOD) | st.binary(max_size=40))
def test_process_output_is_answers_or_crash(data: bytes) -> None:
    wire, theirs = Wire.pair(decode)
    fake: Any = object()
    process = WorkerProcess(fake, wire, fake)
    call: Any = None
    process.open = {"a": (1, call), "b": (2, call)}
    with theirs:
        theirs.sendall(len(data).to_bytes(8, "big") + data)
        found = process.read()
    wire.close()
    assert {answer.episode for answer in found} <= {"a", "b"}
    if process.is_gone:
        failure = process.find_end(60.0)
        assert failure is not None and failure.cause == "crash" and "invalid answer" in failure.detail


@settings(max_examples=120, derandomize=True)
@given(json_values(6), json_values(6), json_values(6))
def test_reward_service_answer_is_results_or_error(reward: Any, parts: Any, failure: Any) -> None:
    item = RewardItem(completion="7", answer="7")
    for tree in (
        {"rewards": [reward], "parts": [parts], "failures": [failure]},
        {"rewards": [1], "failures": [{"cause": failure, "detail": parts}]},
        {"rewards": reward, "extra_logs": parts},
    ):
        try:
            [result] = parse_answer(json.dumps(tree).encode(), [item])
        except RewardError:
            continue
        assert all(map(is_name, result.parts)) and (result.value is None) == (result.failure is not None)
