"""The root of the config, and the rules that span sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, model_validator

from slurm_rl.config.algorithm import AlgorithmConfig, CriticConfig
from slurm_rl.config.cluster import ClusterConfig
from slurm_rl.config.container import ContainerConfig
from slurm_rl.config.data import DataConfig
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.external import ExternalConfig
from slurm_rl.config.functions import find_loss
from slurm_rl.config.job import JobConfig, LoggingConfig, RayConfig
from slurm_rl.config.model import ModelConfig, fill_auto
from slurm_rl.config.preflight import PreflightConfig
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.rules import RULES
from slurm_rl.config.section import NonNegativeInt, Section, one_of
from slurm_rl.config.sources import each_source, episode_order, fill_sets, has_programs
from slurm_rl.config.supervised import DPOConfig, RMConfig, SFTConfig, SupervisedConfig
from slurm_rl.config.tasks import TASKS
from slurm_rl.config.train import (
    CheckpointConfig,
    EvalConfig,
    OptimConfig,
    PolicyConfig,
    ReferenceConfig,
    RolloutConfig,
    TrainerConfig,
    WarmupConfig,
)


class RunConfig(Section):
    """Everything a user may say about one run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,80}$")] = "run"
    """Part of the run directory's and the job's name: letters, digits and _.- , 81 at most."""
    run_dir: str | None = None
    """Where this run lives; null makes <cluster.run_root>/<name>-<time>."""
    seed: NonNegativeInt = 0
    """Seeds weights, data order and sampling."""
    task: Annotated[str, one_of(TASKS)] = "grpo"
    """What is trained: grpo, which is every algorithm with rollouts; sft, rm (a reward model) or dpo, under torchrun;
    or another program: openrlhf, verl, maxtext, command."""
    cluster: ClusterConfig = ClusterConfig()
    """Machines."""
    container: ContainerConfig = ContainerConfig()
    """Image and runtime."""
    job: JobConfig = JobConfig()
    """Time and restarts."""
    preflight: PreflightConfig = PreflightConfig()
    """Checks of the nodes."""
    ray: RayConfig = RayConfig()
    """The Ray cluster."""
    model: ModelConfig
    """Policy weights and tokenizer."""
    data: DataConfig = DataConfig()
    """Prompts, answers, pairs: what is trained on."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Learning rule."""
    policy: PolicyConfig = PolicyConfig()
    """Training processes."""
    reference: ReferenceConfig = ReferenceConfig()
    """The model of the KL term."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling."""
    reward: RewardConfig = RewardConfig()
    """Scoring."""
    env: EnvironmentConfig = EnvironmentConfig()
    """Episodes of several turns."""
    optim: OptimConfig = OptimConfig()
    """Optimizer."""
    critic: CriticConfig = CriticConfig()
    """The critic of PPO."""
    supervised: SupervisedConfig = SupervisedConfig()
    """What sft, rm and dpo share."""
    sft: SFTConfig = SFTConfig()
    """Supervised fine-tuning."""
    rm: RMConfig = RMConfig()
    """Reward models."""
    dpo: DPOConfig = DPOConfig()
    """Preferences."""
    warmup: WarmupConfig = WarmupConfig()
    """Supervised start."""
    trainer: TrainerConfig = TrainerConfig()
    """The loop."""
    eval: EvalConfig = EvalConfig()
    """Held-out accuracy."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving."""
    logging: LoggingConfig = LoggingConfig()
    """Reporting."""
    external: ExternalConfig | None = None
    """Of the tasks openrlhf, verl, maxtext and command: the program that runs in place of ours."""

    @model_validator(mode="before")
    @classmethod
    def _fill_auto(cls, tree: Any) -> Any:
        """Saved configs say what `auto` came to."""
        if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
            return tree
        cluster = tree.get("cluster")
        accelerator = cluster.get("accelerator") if isinstance(cluster, dict) else getattr(cluster, "accelerator", None)
        tree = fill_sets(tree)
        return {**tree, "model": fill_auto(tree["model"], has_gpus=(accelerator or "cpu") != "cpu")}

    @property
    def under_torchrun(self) -> bool:
        """Whether torchrun starts ranks on every node, in place of one driver on a Ray cluster."""
        if self.external is not None:
            return self.external.start == "torchrun"
        return TASKS[self.task].under_torchrun

    @property
    def engines_take_any_time(self) -> bool:
        """Whether rollout engines take requests while others are in flight."""
        return self.rollout.continuous or has_programs(self) or episode_order(self) == "free"

    @property
    def bends_distribution(self) -> bool:
        """Some rows are sampled from another distribution than that of the weights; see RolloutConfig."""
        return any(one.rollout.bends_distribution for one in each_source(self).values())

    @property
    def correction_kind(self) -> str | None:
        """Which row of CORRECTIONS corrects for the sampler; see CorrectionConfig."""
        kind = self.algorithm.correction.kind
        if kind != "auto":
            return kind
        rollout = self.rollout
        exact = self.model.dtype == "float32" and rollout.max_staleness == 0 and not rollout.engine_args
        if exact and not self.bends_distribution:
            return None
        return "geometric_mask" if find_loss(self.algorithm.loss).per_sequence else "token_tis"

    def problems(self) -> Iterator[str]:
        for rule in RULES:
            yield from rule(self)
