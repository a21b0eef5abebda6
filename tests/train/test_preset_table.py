"""Every algorithm preset with every kind of run: planned, and its learner run for two steps on a recorded batch.

Each cell covers the config rules, the plan, and the trainer's path from scored groups to weights on real models:
overlong shaping, advantages, sequences, minibatches, logprobs of policy and reference, loss and step of the policy,
values and step of the critic. Sampling, rewards and environments are recorded; tests/examples covers them.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.algorithms.filters import keep_mask
from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.algorithms.shaping import shape_overlong
from slurm_rl.algorithms.train_sequences import build_plain_sequences, find_parts, join_parts
from slurm_rl.cli.common import compose_run
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_source
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.data.groups import Branch, Details, Group, Trajectory, Turn
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.vision import ImageReader
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.workers.critic import Critic, CriticWorker
from slurm_rl.workers.train_workers import PolicyWorker, TrainWorker, WorkerGroup
from tests.image_kit import build_sequence, write_image
from tests.tiny_models import TinyVL, build_tiny_model
from tests.train.conftest import SMALL

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


GROUP_SIZE = 4
REFUSED = {("images", "ppo"): "a critic or a reward model needs a text model"}
"""Cells that `plan` refuses, with its message."""
FAST = ("grpo", "ppo")
"""Presets that `make test` combines with every kind of run; the others only with single turns."""
BATCH = (f"algorithm.group_size={GROUP_SIZE}", "trainer.prompts_per_step=4", "trainer.num_minibatches=2")


class LocalGroup(WorkerGroup):
    """A group of one worker in this process, called without Ray."""

    def __init__(self, worker: TrainWorker) -> None:
        nothing: Any = None
        super().__init__(nothing, [nothing], micro_batch_tokens=512, timeout_s=1.0, name="policy")
        self.worker = worker
        self.note_rows([worker.check_rows()])

    def _gather(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self.worker, method)(*each) for each in arguments]


class Models:
    """Policy, reference and critic of one architecture, built once and reset to their first weights for each cell."""

    def __init__(self, folder: Path, teacher: Path, lora: LoraConfig | None) -> None:
        self.policy, self.critic = object.__new__(PolicyWorker), object.__new__(CriticWorker)
        self.policy.engine = self._build(folder, lora, None)
        self.policy.device, self.policy.config = self.policy.engine.device, load_config(["+exp=demo"])
        # Other weights than the policy's, so that distillation has something to learn.
        self.policy.load_reference(str(teacher))
        self.teacher, self.frozen = teacher, self.policy.reference
        self.learners: dict[str, TrainWorker] = {"policy": self.policy}
        if self.policy.engine.reader.images is None:
            self.critic.engine, self.critic.unit = self._build(folder, None, 1), None
            self.learners["critic"] = self.critic
        self.saved = {name: folder.with_name(f"{folder.name}-{name}") for name in self.learners}
        for name, worker in self.learners.items():
            self.saved[name].mkdir()
            worker.save(self.saved[name], False)

    def _build(self, folder: Path, lora: LoraConfig | None, score_seed: int | None) -> PolicyEngine:
        model, optim = ModelConfig(path=str(folder), lora=lora), OptimConfig(lr=1e-3)
        threads = PolicyConfig(num_threads=1)
        return PolicyEngine(folder, model, threads, optim, temperature=1.0, score_seed=score_seed, seed=1)

    def open_learner(self, config: RunConfig) -> Learner:
        for name, worker in self.learners.items():
            worker.load(self.saved[name])
        self.policy.config = self.critic.config = config
        self.policy.reference = self.frozen if config.policy_holds_reference else None
        policy = LocalGroup(self.policy)
        critic = Critic(LocalGroup(self.critic)) if config.algorithm.needs_values else None
        return Learner(config, policy, policy, critic)


@pytest.fixture(scope="module")
def find_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Models]:
    folder, found = tmp_path_factory.mktemp("models"), dict[str, Models]()

    def find(kind: str) -> Models:
        name = kind if kind in ("images", "lora") else "text"
        if name not in found:
            paths = [folder / f"{name}-{seed}" for seed in range(2)]
            for seed, path in enumerate(paths):
                if name == "images":
                    build_tiny_model(TinyVL(family="qwen2_5_vl"), seed=seed, folder=path)
                else:
                    build_tiny_model(SMALL, seed=seed, folder=path)
            found[name] = Models(paths[0], paths[1], LoraConfig(rank=4) if name == "lora" else None)
        return found[name]

    return find


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_image(tmp_path_factory.mktemp("images") / "0.png", 0, 60, 60)


@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        pytest.param(kind, preset, marks=[] if kind == "single" or preset in FAST else [pytest.mark.slow])
        for kind in KINDS
        for preset in PRESETS
    ],
)
def test_preset_with_kind_of_run_plans_and_learns(
    kind: str, preset: str, find_models: Callable[[str], Models], image: str
) -> None:
    words = (*KINDS[kind].words, f"+algorithm={preset}", *BATCH, "model.dtype=float32")
    if (kind, preset) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[kind, preset]):
            check_inputs(compose_run(words, KINDS[kind].config_dir)[0], print)
        return
    models = find_models(kind)
    words += (f"reference.path={models.teacher}",) if preset == "distill" else ()
    config, _, _ = compose_run(words, KINDS[kind].config_dir)
    learner = models.open_learner(config)
    images = models.policy.engine.reader.images
    for step in range(2):
        groups = build_groups(kind, GROUP_SIZE, images, image)
        plain = build_plain_sequences(groups, learner.temperatures)
        groups = with_logprobs(groups, learner.policy.compute("logprobs", plain))
        longest = {name: one.rollout.max_tokens for name, one in each_source(config).items()}
        groups = shape_overlong(groups, config.algorithm.overlong, longest)
        learned = learner.learn(groups, step, None)
        completions = [completion for group in groups for completion in group.completions]
        kept = [one for one, keep in zip(completions, keep_mask(groups, config.algorithm.filters), strict=True) if keep]
        assert learned.num_tokens == sum(one.num_sampled for one in kept) > 0, "it trains on what was sampled only"
        assert len(learned.totals) == config.trainer.num_updates
        assert all(math.isfinite(one[name]) for one in learned.totals for name in ("loss", "grad_norm"))
        # In the second minibatch gspo may clip every sequence.
        assert learned.totals[0]["grad_norm"] > 0
        # The first minibatch has the weights of sampling.
        assert learned.totals[0]["mismatch/max"] < 1e-4
        if config.algorithm.needs_values:
            assert learned.metrics["critic/loss"] > 0 and learned.metrics["critic/grad_norm"] > 0
            assert math.isfinite(learned.metrics["critic/explained_variance"])
