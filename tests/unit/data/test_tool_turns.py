from typing import Any

import pytest

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.tool_syntax import ToolSyntax, as_calls, find_tail, write_calls
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.errors import ConfigError, DataError
from tests.templates import ADD, END, build_tokenizer

SUBTRACT = {**ADD, "function": {**ADD["function"], "name": "subtract"}}  # type: ignore[dict-item]
PARSERS = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_think": "qwen3_coder",
    "llama3_1": "llama3_json",
    "llama3_2": "llama3_json",
    "gemma4": "gemma4",
    "gemma4_v2": "gemma4",
    "glm4moe": "glm45",
    "lfm2_v2": "lfm2",
    "nemotron_3_nano": "qwen3_coder",
}


def template(family: str, *tools: dict[str, Any]) -> ChatTemplate:
    return ChatTemplate(build_tokenizer(family), {}, tools)


def result(place: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": "add", "tool_call_id": f"call{place:05d}", "content": content}


@pytest.mark.parametrize("family", ["qwen3", "llama3_2", "gemma4"])
def test_parts_equal_tokens_of_full_conversation(family: str) -> None:
    chat = template(family, ADD)
    turns, tokenizer, end = TurnRenderer(chat.tokenizer, chat), chat.tokenizer, END[family]
    asked: list[dict[str, Any]] = [{"role": "user", "content": "what is 3 + 4 + 5?"}]
    calls = [as_calls(["add"], [{"a": number, "why": "so"}]) for number in (3, 7)]
    said = [calls[0], result(0, "7"), calls[1], result(0, "12")]
    text = chat.render(asked, "?", add_generation_prompt=True)
    tail = find_tail(chat)
    for call, answer in zip(calls, ("7", "12"), strict=True):
        # The stop token ends the reply: the end of the turn, or Gemma's tool-call stop.
        stop = tail or end
        text += write_calls(chat, call).removesuffix(tail) + stop
        text += tokenizer.decode(turns.render([result(0, answer)], tokenizer.convert_tokens_to_ids(stop)))
    assert text == chat.render([*asked, *said], "?", add_generation_prompt=True)


@pytest.mark.parametrize("family", PARSERS)
def test_results_follow_calls_in_supported_templates(family: str) -> None:
    chat = template(family, SUBTRACT, ADD)
    turns = TurnRenderer(chat.tokenizer, chat)
    one = chat.tokenizer.decode(turns.render([result(0, "OBSERVED")]))
    two = chat.tokenizer.decode(turns.render([result(0, "OBSERVED"), result(1, "TOO")]))
    assert one.count("OBSERVED") == two.count("OBSERVED") == two.count("TOO") == 1
    assert two.index("OBSERVED") < two.index("TOO")
    syntax = ToolSyntax.of(chat, None)
    assert syntax.parser == PARSERS[family] and syntax.example.strip().startswith(syntax.opening[:1])
    assert syntax.example_call == ("subtract", {"a": 17, "why": "Zwischenruf"})
    assert ToolSyntax.of(chat, "mistral").parser == "mistral"


def test_thinking_format_is_detected_from_template() -> None:
    syntax = {family: ToolSyntax.of(template(family, ADD), None) for family in ("qwen3", "qwen3_5_think", "llama3_2")}
    assert syntax["qwen3"].thought == ("<think>", "</think>") and not syntax["qwen3"].thinks_first
    assert syntax["qwen3_5_think"].thinks_first and syntax["llama3_2"].thought is None


@pytest.mark.parametrize("family", ["gemma3", "llama3", "phi3"])
def test_template_without_tools_is_refused(family: str) -> None:
    with pytest.raises(DataError, match="lists them; got nothing of add"):
        template(family, ADD)


def test_template_that_drops_calls_is_refused() -> None:
    chat = template("lfm2", ADD)
    with pytest.raises(ConfigError, match=r"env\.tools needs a chat template that renders the same text"):
        TurnRenderer(chat.tokenizer, chat)
    with pytest.raises(ConfigError, match=r"env\.tool_parser must be set .* a template without calls"):
        ToolSyntax.of(chat, None)


def test_unknown_call_syntax_must_be_named() -> None:
    chat = template("gptoss", ADD)
    with pytest.raises(ConfigError, match=r"env\.tool_parser must be set"):
        ToolSyntax.of(chat, None)
    assert ToolSyntax.of(chat, "openai").parser == "openai"


def test_thinking_is_kept_over_user_and_tool_turns() -> None:
    """Qwen3's template drops thinking before a user turn, so earlier replies must not be rendered again."""
    chat = template("qwen3", ADD)
    turns, tokenizer = TurnRenderer(chat.tokenizer, chat), chat.tokenizer
    thought = "<think>\nhm\n</think>\n\n7"
    asked = [{"role": "user", "content": "3 + 4?"}]
    again = chat.render(
        [*asked, {"role": "assistant", "content": thought}, {"role": "user", "content": "sure?"}],
        "?",
        add_generation_prompt=True,
    )
    assert "hm" not in again, "the template rewrites history"
    text = chat.render(asked, "?", add_generation_prompt=True) + thought + END["qwen3"]
    end = tokenizer.convert_tokens_to_ids(END["qwen3"])
    whole = text + tokenizer.decode(turns.render("sure?", end))
    assert whole == again.replace("assistant\n7", f"assistant\n{thought}")
    kept = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer(whole, add_special_tokens=False)["input_ids"][: len(kept)] == kept


def test_unsampled_gemma_end_marker_is_added() -> None:
    chat = template("gemma4", ADD)
    turns, waits = TurnRenderer(chat.tokenizer, chat), chat.tokenizer.convert_tokens_to_ids("<|tool_response>")
    assert find_tail(chat) == "<|tool_response>"
    cut, waited = turns.render([result(0, "7")]), turns.render([result(0, "7")], waits)
    assert cut == [waits, *waited] and chat.tokenizer.decode(waited).startswith("response:add{")


HIDING = "{% for m in messages %}{% if not loop.last or m.role == 'assistant' %}{{ m.content }};{% endif %}{% endfor %}"
COUNTING = "{% for m in messages %}{{ m.content }}<|im_end|>{{ messages[1].content | length }}{% endfor %}"


def renderer(family: str = "qwen3", template: str | None = None) -> TurnRenderer:
    tokenizer = build_tokenizer(family)
    tokenizer.chat_template = template or tokenizer.chat_template
    return TurnRenderer(tokenizer, ChatTemplate(tokenizer))


@pytest.mark.parametrize("family", ["qwen3", "llama3_2", "gemma3", "gemma4"])
def test_render_equals_full_conversation(family: str) -> None:
    parts = renderer(family)
    tokenizer = parts.tokenizer
    said = [("user", "guess"), ("assistant", "5"), ("user", "higher"), ("assistant", "6"), ("user", "lower")]
    messages = [{"role": role, "content": content} for role, content in said]
    end = tokenizer.convert_tokens_to_ids(END[family])
    tokens = parts.begin(messages[:1])
    for reply, observation in (("5", "higher"), ("6", "lower")):
        tokens += [*tokenizer(reply, add_special_tokens=False)["input_ids"], end, *parts.render(observation, end)]
    assert tokenizer.decode(tokens) == tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_render_adds_unsampled_end_of_turn() -> None:
    parts = renderer()
    end = parts.tokenizer.convert_tokens_to_ids("<|im_end|>")
    cut, ended = parts.render("no", last_token=20), parts.render("no", last_token=end)
    assert cut == [end, *ended]
    text = parts.tokenizer.decode(cut)
    assert text == "<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("template", "word"), [(HIDING, "no observation"), (COUNTING, "another text behind")])
def test_template_that_rewrites_conversation_is_refused(template: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        renderer(template=template)


def test_render_without_template_appends_text() -> None:
    tokenizer = build_tokenizer("qwen3")
    plain = TurnRenderer(tokenizer, None)
    assert tokenizer.decode(plain.render("higher", 5)) == "higher" and plain.render("") == []
    with pytest.raises(DataError, match=r"data\.chat_template=false"):
        plain.render([{"role": "user", "content": "no"}])


def test_render_keeps_observation_with_placeholder_text() -> None:
    parts = renderer()
    text = parts.tokenizer.decode(parts.render("so Zwischenruf and more"))
    assert text.startswith("<|im_end|>\n<|im_start|>user\nso Zwischenruf and more<|im_end|>")
