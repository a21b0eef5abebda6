"""Sample dialogues in the chat templates of the model families on a real vLLM engine as a run does; compare its
logprobs with the policy's on the training sequences.

    python -m tests.train.dialogue_script FOLDER qwen3/tools gemma3/talk

qwen3/tools     thought, call of `add`, result, thought, answer; parser hermes
qwen3/talk      three replies with thoughts; the template would drop the earlier thoughts
qwen3/program   the same, driven by a program that sends replies back without their thoughts
gemma3/talk     three replies, template without tools or thoughts

The templates are the families' own (tests/templates.py); all share a vocabulary of one token per character and a tiny
Qwen3, which is trained to produce the dialogues. The numbers in replies are random, so that no token is certain.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Qwen3Config, Qwen3ForCausalLM

from slurm_rl.algorithms.packing import distribute
from slurm_rl.algorithms.policy_loss import build_warmup_loss
from slurm_rl.algorithms.sequences import FloatArray, TokenPrompt, TrainSequence
from slurm_rl.algorithms.train_sequences import build_plain_sequences, find_parts
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig, RolloutConfig
from slurm_rl.data.chat import ChatTemplate
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.prompts import Message, PromptRow, Text
from slurm_rl.data.tokenize import EncodedPrompt, encode_prompts
from slurm_rl.data.tool_syntax import ToolSyntax, as_calls, find_tail, write_calls
from slurm_rl.data.turns import TurnRenderer
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.schemas import Schema, read_schemas
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.agent_trajectory import AgentTrajectory
from slurm_rl.rollout.endpoint.conversation import Conversation, DialogueRenderer
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.sampling import seed_prompts
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.vllm.outputs import CompletionBuilder
from tests.templates import END, build_tokenizer
from tests.tiny_models import TinyModel, draw_weights, shape_of
from tests.train.dialogue_environments import AGAIN, TURNS

WORLDS = Path(__file__).with_name("dialogue_environments.py")
CONTEXT, TURN_TOKENS, MAX_TOKENS = 2048, 96, 512
STEPS, ROW_TOKENS = 390, 4096
SHAPE = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, context_length=CONTEXT)
CALLS = ("made", "malformed", "unknown", "arguments", "cut", "thinking")
"""Kinds of a first reply; those after `made` are used with the two most common syntaxes."""
INVALID_CALLS = ("qwen3", "llama3_2")


@cache
def tool_schemas() -> list[Schema]:
    """Return the schemas of the environment with tools."""
    return read_schemas(EnvironmentConfig(tools=f"{WORLDS}:Calculator"))


@dataclass(frozen=True)
class Case:
    """A family's template and the environment of its dialogues."""

    name: str

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def has_tools(self) -> bool:
        return self.name.endswith("/tools")

    @cached_property
    def env(self) -> EnvironmentConfig:
        world = {"tools": f"{WORLDS}:Calculator"} if self.has_tools else {"name": f"{WORLDS}:Doubter"}
        return EnvironmentConfig(**world, max_turns=TURNS, turn_tokens=TURN_TOKENS, timeout_s=60.0)

    @property
    def schemas(self) -> list[Schema]:
        return tool_schemas() if self.has_tools else []

    @cached_property
    def tokenizer(self) -> Any:
        return build_tokenizer(self.family)

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, {}, self.schemas)

    @cached_property
    def renderer(self) -> TurnRenderer:
        return TurnRenderer(self.tokenizer, self.template)

    @cached_property
    def thought(self) -> tuple[str, str]:
        """Start and end of a thought as the policy samples them; "" for a family without thoughts."""
        if self.family == "gemma3":  # its template takes no tools
            return "", ""
        template = ChatTemplate(self.tokenizer, {}, tool_schemas())
        syntax = ToolSyntax.of(template, None)
        begin, end = syntax.thought or ("", "")
        return "" if syntax.thinks_first else begin, end

    @cached_property
    def stop(self) -> list[str]:
        """Strings that end a reply: the end of the turn, and the token at which Gemma 4 waits after a call."""
        tail = find_tail(self.template) if self.has_tools else ""
        return [END.get(self.family, "<|im_end|>"), *filter(None, [tail])]

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompts(self, count: int) -> list[EncodedPrompt]:
        rows = [PromptRow(index=place, prompt=f"{place} + 7?", answer="") for place in range(count)]
        sizes = {"max_prompt_tokens": CONTEXT - MAX_TOKENS, "context_length": CONTEXT, "max_tokens": MAX_TOKENS}
        return encode_prompts(rows, self.tokenizer, template=self.template, **sizes)


@dataclass(frozen=True)
class Author:
    """Writes the dialogues that the model is trained on."""

    case: Case
    random: np.random.Generator

    def number(self) -> int:
        return int(self.random.integers(10 ** self.random.integers(1, 5)))

    def render_thought(self, text: str = "") -> str:
        begin, end = self.case.thought
        return f"{begin}{text or self.number()}{end}" if end else ""

    def write(self, prompt: EncodedPrompt) -> TrainSequence:
        """Return a dialogue with the environment's replies."""
        end = self.case.stop[0]
        if not self.case.has_tools:
            replies = [f"{self.render_thought()}{self.number()}{end}" for _ in range(TURNS)]
            return build_sequence(self.case, prompt, replies, [AGAIN] * (TURNS - 1))
        kinds = CALLS if self.case.family in INVALID_CALLS else CALLS[:1]
        kind = kinds[self.random.integers(len(kinds))]
        a, b = self.number(), self.number()
        if kind != "made" and self.random.random() < 0.8:
            return build_sequence(self.case, prompt, [self.write_invalid(kind, a, b)], [])
        first = f"{self.render_thought()}{self.call(a, b)}{self.case.stop[-1]}"
        result = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": str(a + b)}
        return build_sequence(self.case, prompt, [first, f"{self.render_thought()}{self.number()}{end}"], [[result]])

    def call(self, a: Any, b: Any) -> str:
        return write_calls(self.case.template, as_calls(["add"], [{"a": a, "b": b}])).removesuffix(self.case.stop[-1])

    def write_invalid(self, kind: str, a: int, b: int) -> str:
        """Return a first reply with an invalid call."""
        end, good = self.case.stop[-1], self.call(a, b)
        if kind == "malformed":
            before, _, behind = good.rpartition("}")
            return f"{self.render_thought()}{before}{behind}{end}"
        if kind == "unknown":
            return f"{self.render_thought()}{good.replace('add', 'sub', 1)}{end}"
        if kind == "arguments":
            return f"{self.render_thought()}{self.call('x', b)}{end}"
        if kind == "thinking" and self.case.thought[1]:
            return f"{self.render_thought(good)}{end}"
        return f"{self.render_thought()}{self.call(int('9' * TURN_TOKENS), b)}"[: TURN_TOKENS + 40]


def build_sequence(case: Case, prompt: EncodedPrompt, replies: Sequence[str], read: Sequence[Text]) -> TrainSequence:
    """Build the sequence; train on replies, not on the texts between them."""
    token_ids, trained = list(prompt.token_ids), list[int]()
    for place, reply in enumerate(replies):
        own = case.encode(reply)
        trained += range(len(token_ids), len(token_ids) + len(own))
        token_ids += own
        if place < len(read):
            token_ids += case.renderer.render(read[place], own[-1])
    return TrainSequence(
        token_ids=np.asarray(token_ids),
        trained_from=trained[0],
        trained=np.asarray(trained, dtype=np.int64),
        weight=1 / len(trained),
    )


def teach(cases: Sequence[Case], folder: Path) -> PolicyEngine:
    """Train a policy that mostly follows the dialogues of the cases; export it to `folder`/taught.

    A small rate and few steps: a more certain model has larger float32 errors.
    """
    tokenizer = cases[0].tokenizer
    model = draw_weights(lambda: Qwen3ForCausalLM(Qwen3Config(**shape_of(SHAPE, tokenizer))), tokenizer, 0)
    for saved in (model, tokenizer):
        saved.save_pretrained(folder / "drawn")
    config, optim = ModelConfig(path=str(folder / "drawn")), OptimConfig(lr=1e-3)
    policy = PolicyEngine(folder / "drawn", config, PolicyConfig(num_threads=1), optim, temperature=1.0)
    random = np.random.default_rng(0)
    authors = [(Author(case, random), case.prompts(1)[0]) for case in cases]
    # Calls need the most steps to learn.
    shares = np.asarray([3.0 if case.has_tools else 1.0 for case in cases])
    for step in range(STEPS):
        chosen = random.choice(len(cases), min(3, len(cases)), replace=False, p=shares / shares.sum())
        # One per row: the mask of a packed row takes quadratic memory.
        taught = [[authors[place][0].write(authors[place][1])] for place in chosen]
        found = policy.train(taught, build_warmup_loss(), 1e-3 * min((step + 1) / 20, 1 - step / STEPS))
        if step % 40 == 39:
            print(f"step {step}: {found['loss']:.3f}", file=sys.stderr, flush=True)
    policy.export(folder / "taught")
    return policy


def pack(sequences: Sequence[TrainSequence]) -> tuple[list[list[TrainSequence]], list[list[int]]]:
    """Pack several sequences per row, as a training step does; return rows and their sequence indices."""
    [share] = distribute([len(one.token_ids) for one in sequences], 1, ROW_TOKENS)
    return [[sequences[place] for place in row] for row in share], share


MEMBERS = 4


class InProcess:
    """`Sampler` over an engine in this process."""

    def __init__(self, engine: VLLMEngine) -> None:
        self.engine = engine

    def start(
        self, prompts: Sequence[EncodedPrompt], spec: SamplingSpec, own_seeds: Sequence[int] | None = None
    ) -> list[Group]:
        seeds = seed_prompts(spec, len(prompts)) if own_seeds is None else own_seeds
        found = self.engine.generate([prompt.tokens for prompt in prompts], seeds, spec)
        return [Group(prompt, group) for prompt, group in zip(prompts, found, strict=True)]

    def finish(self, pending: list[Group], within_s: float | None = None) -> list[Group]:
        return pending


def play(case: Case, engine: VLLMEngine, spec: SamplingSpec) -> list[Group]:
    """Run LockstepEpisodes as a training run does."""
    sampler: Any = InProcess(engine)
    rows = 24 if case.has_tools and case.family in INVALID_CALLS else 4
    with EnvironmentPool(case.env, case.schemas) as pool:
        episodes = LockstepEpisodes(
            sampler, pool, case.renderer, Limits.of(case.env, MAX_TOKENS, CONTEXT - MAX_TOKENS), None
        )
        return episodes.sample(case.prompts(rows), spec)


def play_program(case: Case, engine: VLLMEngine, spec: SamplingSpec) -> list[Group]:
    """Run LockstepEpisodes of a program that sends replies back without their thoughts: each turn starts a branch."""
    groups = []
    for prompt in case.prompts(8):
        conversation = Conversation(DialogueRenderer(case.tokenizer, case.template))
        messages = begin(prompt)
        for turn in range(TURNS):
            place = conversation.place(conversation.read(messages))
            [[reply]] = engine.generate([TokenPrompt(token_ids=place.context)], [prompt.index * TURNS + turn], spec)
            conversation.add(place, reply).heard = True
            text = str(case.tokenizer.decode(reply.token_ids)).rpartition(case.thought[1])[2]
            messages += ask_again(text.removesuffix(case.stop[0]))
        episode: Any = type("Ended", (), {"conversation": conversation, "is_truncated": False})
        groups.append(Group(prompt, [AgentTrajectory(0, 0, prompt, "", episode=episode).completion()]))
    return groups


def begin(prompt: EncodedPrompt) -> list[Message]:
    assert prompt.messages is not None
    return [{"role": "user", "content": prompt.messages[0]["content"]}]


def ask_again(reply: str) -> list[Message]:
    return [{"role": "assistant", "content": reply}, {"role": "user", "content": AGAIN}]


def describe(case: Case, groups: Sequence[Group], policy: PolicyEngine) -> dict[str, Any]:
    """Return the largest logprob difference and the samples."""
    completions = [completion for group in groups for completion in group.completions]
    sampled = [np.asarray(completions[owner].logprobs)[span] for owner, span in find_parts(groups)]
    sequences = build_plain_sequences(groups)
    own = compute(policy, sequences)
    texts = [str(case.tokenizer.decode(one.token_ids)) for one in completions]
    thought = case.thought[1]
    calls = [call for completion in completions for turn in completion.turns for call in turn.calls]
    return {
        "difference": largest_difference(own, sampled),
        "surprise": -min(float(logprobs.min()) for logprobs in sampled),
        "tokens": sum(map(len, sampled)),
        "turns": [len(completion.turns) for completion in completions],
        "sequences": len(sequences),
        "calls": Counter(call.error or "made" for call in calls),
        "thoughts": sum(text.count(thought) for text in texts) if thought else 0,
        "example": texts[0],
    }


def compute(policy: PolicyEngine, sequences: Sequence[TrainSequence]) -> list[FloatArray]:
    """Return the logprobs of each sequence's trained tokens, computed as in a training step."""
    rows, share = pack(sequences)
    places = [place for row in share for place in row]
    found = [one for row in policy.compute_logprobs(rows) for one in row]
    return [found[places.index(place)] for place in range(len(sequences))]


def largest_difference(some: Sequence[FloatArray], others: Sequence[FloatArray]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))


def main(folder: Path, names: Sequence[str]) -> None:
    cases = [Case(name) for name in names]
    policy = teach(cases, folder)
    rollout = RolloutConfig(max_num_seqs=32)
    engine = VLLMEngine(str(folder / "taught"), ModelConfig(path=str(folder / "taught")), rollout, CONTEXT, 0)
    found = {}
    for case in cases:
        # All cases share the weights; a run has one family per engine.
        tools = ToolSyntax.of(case.template, None) if case.has_tools else None
        engine.builder = CompletionBuilder(case.tokenizer, tools)
        stops = tuple(case.tokenizer.convert_tokens_to_ids(case.stop))
        by_program = case.name.endswith("/program")
        spec = SamplingSpec(1 if by_program else MEMBERS, TURN_TOKENS, 1.0, 1.0, seed=3, stop_token_ids=stops)
        groups = (play_program if by_program else play)(case, engine, spec)
        found[case.name] = describe(case, groups, policy)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
