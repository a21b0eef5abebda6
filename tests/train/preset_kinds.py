"""Kinds of runs for the table of algorithm presets: their overrides and recorded batches."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.algorithms.train_sequences import find_parts, join_parts
from slurm_rl.config.load import conf_dir
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.models.vision import ImageReader
from slurm_rl.rewards.results import RewardItem, RewardResult
from tests.image_kit import build_sequence

EXAMPLES = Path(__file__).parents[2] / "examples"
PRESETS = sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))
GAME = ("+exp=guessing_game_tiny",)


@dataclass(frozen=True)
class Kind:
    """A kind of run and how to plan it."""

    words: tuple[str, ...]
    example: str = ""
    """Folder below examples/ with its experiment."""

    @property
    def config_dir(self) -> str | None:
        return str(EXAMPLES / self.example) if self.example else None


KINDS = {
    "single": Kind(("+exp=demo",)),
    "turns": Kind(GAME, "guessing_game"),
    "agents": Kind((*GAME, "env.name=higher.py:Higher"), "guessing_game"),
    "programs": Kind(("+exp=openai_program_tiny",), "openai_program"),
    "mixture": Kind(("+exp=mixture_tiny", "+data.sources.sums.temperature=0.7"), "mixture"),
    "images": Kind(("+exp=images_tiny",), "images"),
    "lora": Kind(("+exp=demo", "+lora=all_linear")),
}


_SHAPES = {"sums": "single", "games": "turns", "calculator": "turns", "lora": "single", "images": "single"}
"""Source or kind -> shape of its completions; other kinds have their own."""
_SOURCES = ("sums", "games", "calculator", "games")
"""Sources of the four prompts of a mixture."""


def build_groups(kind: str, group_size: int, reader: ImageReader | None, image: str) -> list[Group]:
    """Return four prompts with `group_size` completions each, as that kind of run records them; logprobs are 0."""
    chance = random.Random(0)
    groups = []
    for index in range(4):
        source = _SOURCES[index] if kind == "mixture" else ""
        prompt = EncodedPrompt(index=index, token_ids=_draw(3, chance), text="3+4=", answer="7", source=source)
        if reader is not None:
            read = build_sequence(reader, index, [image], num_text=3, trained=0)
            prompt = replace(prompt, token_ids=read.token_ids.tolist(), images=read.images)
        shape = _SHAPES.get(source or kind, source or kind)
        scores = [float((index + member) % 2) for member in range(group_size)]
        completions = [_build_completion(shape, prompt.token_ids, score, chance) for score in scores]
        item = RewardItem(completion="7", answer="7")
        # With agents it is the sum of all agents' scores.
        values = [1.5 * score if kind == "agents" else score for score in scores]
        results = [RewardResult(item=item, value=value, parts={"arithmetic": value}) for value in values]
        groups.append(Group(prompt, completions, results))
    return groups


def with_logprobs(groups: Sequence[Group], arrays: Sequence[FloatArray]) -> list[Group]:
    """Return the groups with the policy's logprobs, one array per sequence, as if it had sampled them."""
    found = iter(join_parts(find_parts(groups), arrays))
    return [
        replace(group, completions=[replace(one, logprobs=next(found).tolist()) for one in group.completions])
        for group in groups
    ]


def _build_completion(shape: str, prompt: list[int], score: float, chance: random.Random) -> Trajectory:
    if shape == "single":
        token_ids = _draw(chance.randint(2, 5), chance)
        return Trajectory(token_ids, [0.0] * len(token_ids), "7", False, 0)
    # Four replies of 2, 1, 2 and 1 tokens; the environment adds 2 tokens after the first and the third.
    token_ids = _draw(10, chance)
    places = [(0, 2), (4, 5), (5, 7), (9, 10)]
    agents, rewards = ["", "", "black", "black"], [None, score, None, score / 2]
    turns = [
        Turn(*place, "7", agent=agent if shape == "agents" else "", reward=reward if shape == "agents" else None)
        for place, agent, reward in zip(places, agents, rewards, strict=True)
    ]
    branches = {
        "turns": [],
        # The other agent's context: the same dialogue without its first reply.
        "agents": [Branch(prompt, 0, 5), Branch(_draw(4, chance), 5, 10)],
        "programs": [Branch(prompt, 0, 5), Branch([*prompt, *token_ids[2:5]], 5, 10)],
    }
    return Trajectory(token_ids, [0.0] * 6, "7", False, 0, Details(turns, branches[shape]))


def _draw(count: int, chance: random.Random) -> list[int]:
    return [chance.randrange(2, 12) for _ in range(count)]
