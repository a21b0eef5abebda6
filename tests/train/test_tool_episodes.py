"""Tool calls as parsed by vLLM, and episodes of them without a model.

With the example's template, tool and call syntax, environments in processes, and an engine with scripted replies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.groups import Details, Group, SamplingSpec, Trajectory
from slurm_rl.data.prompts import PromptRow
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.schemas import read_schemas
from slurm_rl.errors import ConfigError
from slurm_rl.models.load_model import load_tokenizer
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rollout.endpoint.conversation import DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Ask, Bounds, refuse_tools
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.server import Endpoint
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.vllm.tool_calls import CallReaders, ToolCallReader, read_reply
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from tests.templates import ADD as ADD_SCHEMA
from tests.templates import build_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples/calculator"
SPEC = SamplingSpec(num_completions=1, max_tokens=24, temperature=1.0, top_p=1.0, seed=7)


class Engine:
    """Replies by the prompt's question and the number of earlier requests."""

    def __init__(self, tokenizer: Any, reader: ToolCallReader, script: dict[str, list[str]]) -> None:
        self.tokenizer, self.reader, self.script = tokenizer, reader, script
        self.requests: list[str] = []

    def start(self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, seeds: Any = None) -> list[Group]:
        groups = []
        for prompt in prompts:
            text = self.tokenizer.decode(prompt.token_ids)
            self.requests.append(text)
            text = self.script[prompt.answer].pop(0)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            cut = not text.endswith("<eos>")
            found = self.reader.read(text.removesuffix("<eos>"), cut=cut)
            details = Details(content=found.content, calls=found.calls)
            reply = Trajectory(ids, [-1.0] * len(ids), text.removesuffix("<eos>"), cut, 3, details)
            groups.append(Group(prompt, [reply]))
        return groups

    def finish(self, pending: list[Group], within_s: float | None = None) -> list[Group]:
        return pending


class Arithmetic:
    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [RewardResult(item=item, value=float(item.completion == item.answer)) for item in items]


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    config = EnvironmentConfig(tools=str(EXAMPLE / "tools.py"), timeout_s=60.0, turn_tokens=24)
    with EnvironmentPool(config, read_schemas(config)) as pool:
        yield pool


def play(pool: EnvironmentPool, script: dict[str, list[str]]) -> tuple[list[Group], Engine]:
    tokenizer = load_tokenizer(EXAMPLE / "model")
    template = ChatTemplate(tokenizer, {}, pool.schemas)
    syntax = ToolSyntax.of(template, None)
    assert syntax.parser == "pythonic" and syntax.opening == "["
    rows = [PromptRow(index=place, prompt="481+937=", answer=answer) for place, answer in enumerate(script)]
    sizes = {"max_prompt_tokens": 16, "context_length": 96, "max_tokens": 64}
    prompts = encode_prompts(rows, tokenizer, template=template, **sizes)
    engine: Any = Engine(tokenizer, ToolCallReader(syntax, tokenizer), script)
    limits = Limits(max_turns=3, turn_tokens=24, max_tokens=64)
    episodes = LockstepEpisodes(engine, pool, TurnRenderer(tokenizer, template), limits, Arithmetic())
    return episodes.finish(episodes.start(prompts, SPEC), Timer()), engine


def test_tool_call_is_executed_and_answered(pool: EnvironmentPool) -> None:
    [group], engine = play(pool, {"1418": ["[add(a=481,b=937)]<eos>", "1418<eos>"]})
    # As examples/calculator/make_data.py writes the SFT data.
    assert engine.requests == ["add;481+937=", "add;481+937=[add(a=481,b=937)]<eos>1418="]
    [completion] = group.completions
    assert group.results[0].value == 1.0 and completion.text == "1418"
    [call] = completion.turns[0].calls
    assert (call.name, call.arguments, call.result, call.error) == ("add", '{"a": 481, "b": 937}', "1418=", None)
    # The tool's result is between the turns and is not trained on.
    assert completion.turns[1].start - completion.turns[0].end == len("1418=")
    assert completion.num_sampled == len("[add(a=481,b=937)]") + 1 + len("1418") + 1


def test_wrong_calls_are_reported_and_episode_continues(pool: EnvironmentPool) -> None:
    script = {
        "1": ["[add(a=481]<eos>", "1<eos>"],
        "2": ["[add(a=481,b=93", "2<eos>"],
        "3": ["[sub(a=4,b=9)]<eos>", "3<eos>"],
        "4": ["[add(a=4)]<eos>", "4<eos>"],
        "5": ["5<eos>"],
    }
    groups, _ = play(pool, script)
    errors = [[call.error for turn in group.completions[0].turns for call in turn.calls] for group in groups]
    assert errors == [["malformed"], ["cut"], ["unknown"], ["arguments"], []]
    metrics = sampling_metrics(groups)
    assert metrics["tools/calls_mean"] == pytest.approx(4 / 5) and metrics["tools/failed_cut"] == 0.25
    assert metrics["reward/failed"] == 0.0


ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class ScriptedEngine:
    """An engine's handling of program requests, without sampling."""

    def __init__(self, tokenizer: Any, replies: list[str]) -> None:
        self.tokenizer, self.replies, self.contexts = tokenizer, replies, list[str]()
        self.readers = CallReaders(tokenizer)

    def ask(self, ask: Ask) -> None:
        try:
            reader = self.readers.get(ask.tools)
        except ConfigError as error:
            ask.done.set_exception(refuse_tools(str(error)))
            return
        self.contexts.append(self.tokenizer.decode(ask.context))
        text = self.replies.pop(0)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        reply = Trajectory(ids, [-1.0] * len(ids), text.removesuffix("<eos>"), False, 3)
        ask.done.set_result(reply if reader is None else read_reply(reader, reply, None))


def request_twice(parser: str | None, replies: list[str]) -> tuple[Any, Any, list[str]]:
    """Return a program's two answers to a question with a tool."""
    tokenizer = load_tokenizer(EXAMPLE / "model")
    engine = ScriptedEngine(tokenizer, replies)
    renderer = DialogueRenderer(tokenizer, ChatTemplate(tokenizer), parser)
    question: Any = {"role": "user", "content": "481+937="}
    with Endpoint(renderer, SamplingRule(1.0, 1.0, 24), Bounds(4, 96), engine.ask) as endpoint:
        client = openai.OpenAI(base_url=endpoint.url, api_key=endpoint.open("1", 5), max_retries=0)
        asks = client.chat.completions
        first = asks.create(model="policy", messages=[question], tools=[ADD]).choices[0].message
        [call] = first.tool_calls or [None]
        assert call is not None and call.type == "function"
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "1418="}
        message: Any = first.model_dump(exclude_none=True)
        last = asks.create(model="policy", messages=[question, message, result], tools=[ADD]).choices[0].message
    return call.function, last, engine.contexts


def test_program_with_own_tools_gets_parsed_calls() -> None:
    function, last, contexts = request_twice(None, ["[add(a=481,b=937)]<eos>", "1418<eos>"])
    assert (function.name, function.arguments) == ("add", '{"a": 481, "b": 937}')
    assert last.content == "1418" and last.tool_calls is None
    # The same tokens as with our own tool.
    assert contexts == ["add;481+937=", "add;481+937=[add(a=481,b=937)]<eos>1418="]


def test_parser_that_misreads_template_is_refused() -> None:
    with pytest.raises(openai.BadRequestError, match=r"env\.tool_parser=hermes must read the calls"):
        request_twice("hermes", [])


CALL = '{"a": 17, "why": "Zwischenruf"}'
TAGGED = ["qwen3", "gemma4", "qwen3_5_think", "glm4moe", "lfm2_v2"]


def reader(family: str, parser: str | None = None) -> ToolCallReader:
    tokenizer: Any = build_tokenizer(family)
    return ToolCallReader(ToolSyntax.of(ChatTemplate(tokenizer, {}, [ADD_SCHEMA]), parser), tokenizer)


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
    syntax = ToolSyntax.of(ChatTemplate(tokenizer, {}, [ADD_SCHEMA]), None)
    blind = ToolCallReader(replace(syntax, opening="", closing="", example=""), tokenizer)
    assert [call.name for call in blind.read(syntax.example, cut=False).calls] == ["add"]
    assert blind.read("7", cut=False).content == "7"
