"""Sample the dialogues of dialogue_cases.py on a real vLLM engine as a run does; compare the engine's logprobs with the
policy's on the training sequences.

    python -m tests.train.dialogue_script FOLDER qwen3/tools gemma3/talk
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_rl.algorithms.sequences import FloatArray, TokenPrompt, TrainSequence
from slurm_rl.algorithms.train_sequences import build_plain_sequences, find_parts
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import RolloutConfig
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.prompts import Message
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.rollout.agent_trajectory import AgentTrajectory
from slurm_rl.rollout.endpoint.conversation import Conversation, DialogueRenderer
from slurm_rl.rollout.episode import Limits
from slurm_rl.rollout.lockstep_episodes import LockstepEpisodes
from slurm_rl.rollout.sampling import seed_prompts
from slurm_rl.rollout.vllm.engine import VLLMEngine
from slurm_rl.rollout.vllm.outputs import CompletionBuilder
from tests.train.dialogue_cases import CONTEXT, INVALID_CALLS, MAX_TOKENS, TURN_TOKENS, Case, pack, teach
from tests.train.dialogue_environments import AGAIN, TURNS

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
