"""The endpoint with OpenAI's own package as client."""

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest

from slurm_rl.rollout.endpoint.episode import Bounds
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.server import Endpoint
from tests.unit.rollout.endpoint.kit import RULE, Engine, make_renderer, serving

GUESS: Any = [{"role": "user", "content": "guess"}]


def client(endpoint: Endpoint, name: str = "7.0.0", **words: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=endpoint.url, api_key=endpoint.open(name, seed=5), **words)


def post(endpoint: Endpoint, key: str, body: bytes) -> int:
    """Send a request and return the status."""
    request = urllib.request.Request(f"{endpoint.url}/chat/completions", body, {"Authorization": f"Bearer {key}"})
    try:
        return int(urllib.request.urlopen(request, timeout=60).status)
    except urllib.error.HTTPError as error:
        assert "message" in json.load(error)["error"]
        return error.code


def test_chat_is_recorded_as_tokens_and_continued() -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        asks = client(endpoint).chat.completions
        first = asks.create(model="any", messages=GUESS, max_tokens=4, logprobs=True)
        reply = first.choices[0]
        assert reply.message.content == "ok" and reply.finish_reason == "stop"
        assert first.usage is not None and (first.usage.prompt_tokens, first.usage.completion_tokens) == (29, 2)
        assert reply.logprobs is not None and reply.logprobs.content is not None
        assert [(one.token, one.logprob) for one in reply.logprobs.content] == [("o", -0.5), ("k", -0.5)]
        more = [*GUESS, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "<"}]
        asks.create(model="any", messages=more)
        episode = endpoint.close("7.0.0")
    begun = "<user>guess</user><assistant>"
    assert engine.contexts == [begun, f"{begun}ok</assistant><user><</user><assistant>"]
    assert [ask.max_tokens for ask in engine.asked] == [4, 8]
    assert len({ask.seed for ask in engine.asked}) == 2
    [branch] = episode.conversation.branches()
    assert len(branch) == 2


def test_several_replies_and_stream() -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        asks = client(endpoint).chat.completions
        several = asks.create(model="any", messages=GUESS, n=3)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        assert len({ask.seed for ask in engine.asked}) == 3
        stream = asks.create(model="any", messages=GUESS, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "ok"
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 2
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
        assert len(endpoint.close("7.0.0").conversation.branches()) == 4


def test_retry_returns_recorded_reply() -> None:
    """The client times out and retries while the first request is still sampled."""
    engine = Engine()
    engine.gate.clear()
    with serving(engine) as endpoint:
        asks = client(endpoint, max_retries=5, timeout=0.5).chat.completions
        threading.Thread(target=lambda: (time.sleep(0.8), engine.gate.set()), daemon=True).start()
        assert asks.create(model="any", messages=GUESS).choices[0].message.content == "ok"
        # An equal request after that is a new one.
        asks.create(model="any", messages=GUESS)
        [first], [second] = endpoint.close("7.0.0").conversation.branches()
    assert len(engine.asked) == 2 and first.place.name != second.place.name


def test_idempotency_key_names_one_request() -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        asks = client(endpoint).chat.completions
        keyed = {"Idempotency-Key": "a"}
        for _ in range(3):
            asks.create(model="any", messages=GUESS, extra_headers=keyed)
        assert len(engine.asked) == 1
        with pytest.raises(openai.UnprocessableEntityError, match="Idempotency-Key"):
            asks.create(model="any", messages=GUESS, max_tokens=2, extra_headers=keyed)
        assert len(endpoint.close("7.0.0").conversation.branches()) == 1


def test_key_is_valid_for_its_active_episode() -> None:
    with serving(Engine()) as endpoint:
        one, other = client(endpoint, "1"), client(endpoint, "2")
        one.chat.completions.create(model="any", messages=GUESS)
        assert one.models.list().data[0].id == "policy"
        for key in ("wrong", one.api_key[:-1], f"{one.api_key}0"):
            with pytest.raises(openai.AuthenticationError):
                other.with_options(api_key=key).chat.completions.create(model="any", messages=GUESS)
        assert len(endpoint.close("1").conversation.turns) == 1 and endpoint.close("2").conversation.turns == []
        with pytest.raises(openai.AuthenticationError, match="ended episode"):
            one.chat.completions.create(model="any", messages=GUESS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"temperature": 0.2}, "rollout.temperature, or that of the row's source, 1:"),
        ({"top_p": 0.5}, "rollout.top_p"),
        ({"functions": [{"name": "f"}]}, "functions must be left out"),
        ({"n": 0}, r">= 1 - at `\$\.n`"),
        ({"extra_body": {"top_k": 3}}, "keys that this endpoint knows; got 'top_k'"),
        ({"messages": []}, r">= 1 - at `\$\.messages`"),
        ({"messages": [{"role": "oracle", "content": "?"}]}, r"enum value 'oracle' - at `\$\.messages\[0\]\.role`"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, r"enum value 'image_url'"),
    ],
)
def test_unsupported_request_is_refused_without_sampling(words: dict[str, Any], said: str) -> None:
    engine = Engine()
    with serving(engine) as endpoint, pytest.raises(openai.BadRequestError, match=said):
        client(endpoint, max_retries=0).chat.completions.create(**{"model": "any", "messages": GUESS, **words})
    assert engine.asked == []


@pytest.mark.parametrize("body", [b"{", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_invalid_request_is_refused_and_endpoint_stays(body: bytes) -> None:
    with serving(Engine()) as endpoint:
        key = endpoint.open("1", 5)
        assert post(endpoint, key, body) == 400
        assert post(endpoint, key, json.dumps({"messages": GUESS}).encode()) == 200


@pytest.mark.parametrize("streams", [False, True])
def test_internal_error_ends_episode_with_traceback_and_no_retry(
    streams: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        one, other = client(endpoint, "1", max_retries=5), client(endpoint, "2")
        endpoint.renderer.go_on = lambda *_: [][1]  # type: ignore[method-assign]
        asks: Any = one.chat.completions
        asks.create(model="any", messages=GUESS)
        more = [*GUESS, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "<"}]
        with pytest.raises(openai.InternalServerError, match="the run's endpoint failed: IndexError"):
            asks.create(model="any", messages=more, stream=streams)
        with pytest.raises(openai.APIStatusError, match="an episode that has failed"):
            asks.create(model="any", messages=GUESS)
        assert other.chat.completions.create(model="any", messages=GUESS).choices
        failed, well = endpoint.close("1").failure, endpoint.close("2").failure
    assert failed is not None and failed.cause == "exception" and "IndexError" in failed.detail and well is None
    told = capfd.readouterr().err
    # One report: a retry would have repeated it.
    assert told.count("in episode 1") == 1 and "Traceback" in told and "test_server.py" in told


def test_run_overrides_configured_fields() -> None:
    engine = Engine()
    with serving(engine, SamplingRule(1.0, 1.0, 8, overrule=True)) as endpoint:
        client(endpoint).chat.completions.create(model="any", messages=GUESS, temperature=0.2, max_tokens=500)
    assert engine.asked[0].max_tokens == RULE.turn_tokens


@pytest.mark.parametrize(
    ("bounds", "code"), [(Bounds(1, 200), "turn_limit"), (Bounds(9, 60), "context_length_exceeded")]
)
def test_episode_over_limit_is_truncated(bounds: Bounds, code: str) -> None:
    engine = Engine()
    more: Any = [*GUESS, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "<" * 8}]
    with serving(engine, bounds=bounds) as endpoint:
        asks = client(endpoint).chat.completions
        asks.create(model="any", messages=GUESS)
        with pytest.raises(openai.BadRequestError) as over:
            asks.create(model="any", messages=more)
        assert over.value.code == code and len(engine.asked) == 1
        assert ("context length" in str(over.value)) == (code == "context_length_exceeded")
        assert endpoint.close("7.0.0").is_truncated


def test_endpoint_refuses_request_without_token() -> None:
    engine = Engine()
    with serving(engine, renderer=make_renderer(chat=False)) as endpoint:
        key = endpoint.open("1", 5)
        assert post(endpoint, key, b'{"messages": [{"role": "user", "content": ""}]}') == 400
        episode = endpoint.close("1")
    assert engine.asked == [] and episode.failure is None and not episode.is_truncated


def test_long_text_is_refused_before_tokenizing() -> None:
    renderer = make_renderer()
    with serving(Engine(), renderer=renderer) as endpoint:
        key = endpoint.open("1", 5)
        renderer.turns.tokenizer = None  # any further tokenizing fails
        for length in (300, 200_000):
            body = json.dumps({"messages": [{"role": "user", "content": "x" * length}]}).encode()
            assert post(endpoint, key, body) == 400
        episode = endpoint.close("1")
    assert episode.is_truncated and episode.failure is None


def test_tokenizing_does_not_block_other_requests() -> None:
    renderer, gate, begun = make_renderer(), threading.Event(), threading.Event()
    tokenize = renderer.turns.tokenizer

    class Slow(type(tokenize)):  # type: ignore[misc]
        def __call__(self, text: str, **words: Any) -> Any:
            if "slow" in text:
                begun.set()
                gate.wait(60)
            return super().__call__(text, **words)

    renderer.turns.tokenizer = Slow()
    with serving(Engine(), renderer=renderer) as endpoint:
        slow, fair = endpoint.open("slow", 5), endpoint.open("fair", 5)
        body = b'{"messages": [{"role": "user", "content": "slow"}]}'
        thread = threading.Thread(target=lambda: post(endpoint, slow, body), daemon=True)
        thread.start()
        assert begun.wait(30)
        assert post(endpoint, fair, json.dumps({"messages": GUESS}).encode()) == 200
        started = time.monotonic()
        assert len(endpoint.close("fair").conversation.turns) == 1
        assert endpoint.close("slow").conversation.turns == [] and time.monotonic() - started < 5
        gate.set()
        thread.join(60)


def test_dialogue_continues_by_id_and_by_items() -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        asks = client(endpoint).responses
        first = asks.create(model="any", input="guess", instructions="short", max_output_tokens=4)
        assert first.output_text == "ok" and first.status == "completed"
        assert first.usage is not None and first.usage.output_tokens == 2
        more: Any = {"role": "user", "content": [{"type": "input_text", "text": "<"}]}
        asks.create(model="any", input=[more], previous_response_id=first.id)
        asks.create(
            model="any",
            input=[{"role": "user", "content": "guess"}, *(one.model_dump() for one in first.output), more],  # type: ignore[misc]
            instructions="short",
        )
        [branch, alone] = endpoint.close("7.0.0").conversation.branches()
    begun = "<system>short</system><user>guess</user><assistant>"
    assert engine.contexts == [begun, *[f"{begun}ok</assistant><user><</user><assistant>"] * 2]
    assert len(branch) == 2 and len(alone) == 1 and alone[0].place.parent is branch[0]


def test_stream_of_events() -> None:
    with serving(Engine()) as endpoint:
        events = list(client(endpoint).responses.create(model="any", input="guess", stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "ok"
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "output": "3"}]}, "of a call before it"),
        ({"input": [{"type": "image_generation_call", "id": "3"}]}, "must be a message, a call of a function"),
        ({"previous_response_id": "resp_1"}, "of this episode"),
        ({"instructions": 3}, r"got `int` - at `\$\.instructions`"),
        ({"temperature": 0}, "rollout.temperature"),
    ],
)
def test_unsupported_features_are_refused(words: dict[str, Any], said: str) -> None:
    engine = Engine()
    with serving(engine) as endpoint, pytest.raises(openai.BadRequestError, match=said):
        client(endpoint, max_retries=0).responses.create(**{"model": "any", "input": "guess", **words})
    assert engine.asked == []
