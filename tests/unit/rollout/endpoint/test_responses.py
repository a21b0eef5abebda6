from typing import Any

import openai
import pytest

from tests.unit.rollout.endpoint.kit import Engine, serving
from tests.unit.rollout.endpoint.test_server import client


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


def test_both_interfaces_share_dialogue() -> None:
    engine = Engine()
    with serving(engine) as endpoint:
        one = client(endpoint)
        one.responses.create(model="any", input="guess")
        messages: Any = [
            {"role": "user", "content": "guess"},
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": "<"},
        ]
        one.chat.completions.create(model="any", messages=messages)
        assert len(endpoint.close("7.0.0").conversation.branches()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "output": "3"}]}, "of a call before it"),
        ({"input": [{"type": "image_generation_call", "id": "3"}]}, "must be a message, a call of a function"),
        ({"previous_response_id": "resp_1"}, "of this episode"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "a tool must be a function"),
        ({"instructions": 3}, r"got `int` - at `\$\.instructions`"),
        ({"temperature": 0}, "rollout.temperature"),
    ],
)
def test_unsupported_features_are_refused(words: dict[str, Any], said: str) -> None:
    engine = Engine()
    with serving(engine) as endpoint, pytest.raises(openai.BadRequestError, match=said):
        client(endpoint, max_retries=0).responses.create(**{"model": "any", "input": "guess", **words})
    assert engine.asked == []
