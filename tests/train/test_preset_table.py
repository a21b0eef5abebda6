"""Every algorithm preset with every kind of run: planned, and its learner run for two steps on a recorded batch.

Each cell covers the config rules, the plan, and the trainer's path from scored groups to weights on real models:
overlong shaping, advantages, sequences, minibatches, logprobs of policy and reference, loss and step of the policy,
values and step of the critic. Sampling, rewards and environments are recorded; tests/examples covers them.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.algorithms.filters import keep_mask
from slurm_rl.algorithms.shaping import shape_overlong
from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.cli.common import compose_run
from slurm_rl.config.load import load_config
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_source
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.trainers.grpo.learner import Learner
from slurm_rl.workers.critic import Critic, CriticWorker
from slurm_rl.workers.train_workers import PolicyWorker, TrainWorker, WorkerGroup
from tests.image_kit import write_image
from tests.tiny_models import TinyModel, TinyVL, build_tiny_model
from tests.train.preset_kinds import KINDS, PRESETS, build_groups, with_logprobs

TEXT = TinyModel(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1)
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
                    build_tiny_model(TEXT, seed=seed, folder=path)
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
