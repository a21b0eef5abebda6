from pathlib import Path
from typing import Any

import pytest

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.encode_answers import EncodedAnswer, encode_answer, expand_all
from slurm_rl.errors import DataError
from slurm_rl.trainers.supervised.rm import encode_for_training
from tests.templates import ADD, build_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDLESS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FORGETFUL = "{% if messages|length < 3 %}x{% endif %}" + CHATML
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Who"},
    {"role": "assistant", "content": "Me"},
]


@pytest.fixture
def tokenizer() -> Any:
    """Return a tokenizer with one token per character; ChatML tags are special tokens."""
    return build_tokenizer("qwen3")


def learned(encoded: EncodedAnswer, tokenizer: Any) -> str:
    return str(tokenizer.decode(encoded.token_ids[encoded.answered]))


def encode(
    tokenizer: Any, template: str | None, prompt: Any = (), answer: Any = CHAT, tools: Any = ()
) -> EncodedAnswer:
    tokenizer.chat_template = template
    chat = ChatTemplate(tokenizer) if template else None
    return encode_answer(prompt or [], answer, tokenizer, template=chat, name="row 3", tools=tools)


def test_prompt_turns_are_not_trained(tokenizer: Any) -> None:
    assert learned(encode(tokenizer, CHATML, CHAT[:3], CHAT[3:]), tokenizer) == "Me<|im_end|>"


@pytest.mark.parametrize("family", ["qwen3", "gptoss"])
@pytest.mark.parametrize("text", [*"hiknt<>/4", "think", "final"])
def test_encode_answer_finds_text_repeated_in_thinking_or_template(family: str, text: str) -> None:
    tokenizer = build_tokenizer(family)
    thinking = f"{text}, so the answer is {text}"
    last = {"role": "assistant", "content": text, "reasoning_content": thinking, "thinking": thinking}
    encoded = encode_answer([], [*CHAT, CHAT[0], last], tokenizer, template=ChatTemplate(tokenizer), name="row 3")
    words = learned(encoded, tokenizer)
    assert words.count(thinking) == 1
    assert words.endswith(
        {"qwen3": f"\n</think>\n\n{text}<|im_end|>", "gptoss": f"<|message|>{text}<|return|>"}[family]
    )


@pytest.mark.parametrize(("messages", "says"), [
    ([CHAT[0], {"role": "assistant", "content": "Me", "reasoning_content": "Hm"}], "message 2 without 'Hm'"),
    ([CHAT[0], {"role": "assistant", "content": [{"type": "text", "text": "Me"}]}], "message 2 without 'Me'"),
])  # fmt: skip
def test_encode_answer_with_dropped_words_is_refused(messages: list[dict[str, Any]], says: str, tokenizer: Any) -> None:
    dropping = CHATML.replace("{{ m.content }}", "{{ m.content if m.content is string }}")
    with pytest.raises(
        DataError, match=f"row 3: the chat template must render the content of assistant messages; got {says}"
    ):
        encode(tokenizer, dropping, answer=messages)


def test_encode_for_training_of_reward_model_refuses_tools(tokenizer: Any) -> None:
    with pytest.raises(
        DataError, match=r"row 3: a reward model scores conversations without tools.*data\.tools_key=null"
    ):
        encode_for_training("Hi", "Me", "row 3", tokenizer=tokenizer, template=None, tools=[ADD])


def test_plain_text_ends_with_end_of_text(tokenizer: Any) -> None:
    encoded = encode_answer("Hi", "Hello", tokenizer, template=None, name="row 3")
    assert learned(encoded, tokenizer) == "Hello<|im_end|>"
    assert tokenizer.decode(encoded.token_ids) == "HiHello<|im_end|>"


SEEN = {"role": "user", "content": [{"type": "image", "image": "/a.png"}, {"type": "text", "text": "Who"}]}


@pytest.mark.parametrize(
    ("template", "words", "says"),
    [
        (ENDLESS, {}, "must end an assistant turn with a special token"),
        (FORGETFUL, {}, "got message 2, as"),
        (CHATML, {"prompt": [SEEN], "answer": CHAT[3:]}, "the model must support .*'image'"),
        (None, {}, "messages need the chat template"),
        (None, {"prompt": "Hi", "answer": "\u4e2d"}, r"'\\u4e2d'"),
        (None, {"prompt": "Hi", "answer": "Me", "tools": [ADD]}, "tools need the chat template"),
    ],
)
def test_row_that_cannot_be_encoded_is_named(
    template: str | None, words: dict[str, Any], says: str, tokenizer: Any
) -> None:
    with pytest.raises(DataError, match=f"row 3: .*{says}"):
        encode(tokenizer, template, **words)


class Counter:
    """Count the width of an image as its tokens."""

    image_token_id = 40

    def count_tokens(self, size: tuple[int, int]) -> int:
        return size[0]


def test_image_tokens_shift_trained_tokens(tokenizer: Any, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (5, 9)).save(tmp_path / "five.png")
    Image.new("RGB", (3, 9)).save(tmp_path / "three.png")
    tokenizer.add_tokens(["<|image|>"])
    Counter.image_token_id = tokenizer.convert_tokens_to_ids("<|image|>")
    show = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
    show += "<|image|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    tokenizer.chat_template = CHATML.replace("{{ m.content }}", show)
    five, three = ({"type": "image", "image": str(tmp_path / name)} for name in ("five.png", "three.png"))
    who = {"type": "text", "text": "Who"}
    chat = [{"role": "user", "content": [five, who]}, CHAT[1], {"role": "user", "content": [who, three]}, CHAT[3]]
    answer = encode_answer([], chat, tokenizer, template=ChatTemplate(tokenizer), name="row 3", sees_images=True)
    [whole] = expand_all([answer], Counter())
    assert learned(whole, tokenizer) == learned(answer, tokenizer) == "Hello<|im_end|>Me<|im_end|>"
    assert len(whole.token_ids) == len(answer.token_ids) + 4 + 2
    for span, count in zip(whole.images, (5, 3), strict=True):
        assert span.num_tokens == count
        inside = whole.token_ids[span.start - 1 : span.start + count + 1] == Counter.image_token_id
        assert inside.tolist() == [False, *[True] * count, False]
