"""Tool calls as parsed by vLLM: valid, malformed, cut off, in a thought."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.errors import ConfigError
from slurm_rl.rollout.vllm.tool_calls import ToolCallReader
from tests.templates import ADD, build_tokenizer

CALL = '{"a": 17, "why": "Zwischenruf"}'
TAGGED = ["qwen3", "gemma4", "qwen3_5_think", "glm4moe", "lfm2_v2"]


def reader(family: str, parser: str | None = None) -> ToolCallReader:
    tokenizer: Any = build_tokenizer(family)
    return ToolCallReader(ToolSyntax.of(ChatTemplate(tokenizer, {}, [ADD]), parser), tokenizer)


def read(of: ToolCallReader, text: str, *, cut: bool = False) -> tuple[str, list[tuple[str, str, str | None]]]:
    """Parse text after a thought, because the model starts inside one."""
    syntax = of.syntax
    begun = syntax.thought[1] if syntax.thought is not None and syntax.thinks_first else ""
    found = of.read(begun + text, cut=cut)
    return found.content.strip(), [(call.name, call.arguments, call.error) for call in found.calls]


@pytest.mark.parametrize("family", [*TAGGED, "llama3_2"])
def test_reader_parses_calls_that_template_renders(family: str) -> None:
    of = reader(family)
    assert read(of, of.syntax.example) == ("", [("add", CALL, None)])
    assert read(of, "It is 7.") == ("It is 7.", [])


@pytest.mark.parametrize("family", [*TAGGED, "llama3_2"])
def test_reader_marks_cut_call(family: str) -> None:
    of = reader(family)
    for length in (len(of.syntax.opening) + 8, len(of.syntax.example) - len(of.syntax.closing) - 1):
        text = of.syntax.example[:length]
        assert read(of, text, cut=True)[1] == [("", text, "cut")]
    # A cut after the call does not affect it.
    assert read(of, of.syntax.example, cut=True)[1] == [("add", CALL, None)]


@pytest.mark.parametrize("family", TAGGED)
def test_reader_keeps_valid_call_next_to_malformed_one(family: str) -> None:
    of = reader(family)
    bad = f"{of.syntax.opening}{{oops{of.syntax.closing}"
    good = of.syntax.example
    assert [error for _, _, error in read(of, f"so {good}{bad}{good}")[1]] == [None, "malformed", None]
    assert read(of, f"so {good}")[0] == "so"


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "glm4moe"])
def test_reader_does_not_execute_calls_in_thinking(family: str) -> None:
    of = reader(family)
    example = of.syntax.example
    thought = of.read(("" if of.syntax.thinks_first else "<think>") + f"I could {example}</think>It is 7.", cut=False)
    assert thought.content == "It is 7." and [call.error for call in thought.calls] == ["thinking"]
    assert read(of, f"<think>once {example}</think>{example}")[1][0] == ("add", CALL, None)
    unended = read(of, f"<think>I could {example}", cut=True)
    assert unended[0] == "" and [error for _, _, error in unended[1]] == ["thinking"]


def test_reader_keeps_unknown_tools_and_wrong_types() -> None:
    of = reader("qwen3")
    text = '<tool_call>\n{"name": "sub", "arguments": {"a": "x"}}\n</tool_call>'
    assert read(of, text)[1] == [("sub", '{"a": "x"}', None)]


def test_reader_marks_text_like_untagged_call_as_malformed() -> None:
    of = reader("llama3_2")
    assert read(of, '{"name": "add", "parameters": {"a": 1')[1][0][2] == "malformed"
    assert read(of, "Say {7}")[1] == []


def test_reader_rejects_parser_that_does_not_match_template() -> None:
    with pytest.raises(ConfigError, match=r"env\.tool_parser=hermes must read the calls that the chat template writes"):
        reader("gemma4", "hermes")
    with pytest.raises(ConfigError, match=r"env\.tool_parser=nobody must read"):
        reader("qwen3", "nobody")


def test_reader_trusts_parser_without_template() -> None:
    tokenizer: Any = build_tokenizer("qwen3")
    syntax = ToolSyntax.of(ChatTemplate(tokenizer, {}, [ADD]), None)
    blind = ToolCallReader(replace(syntax, opening="", closing="", example=""), tokenizer)
    assert [call.name for call in blind.read(syntax.example, cut=False).calls] == ["add"]
    assert blind.read("7", cut=False).content == "7"
