"""The root of the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from slurm_rl.config.algorithm import AlgorithmConfig, CriticConfig
from slurm_rl.config.cluster import ClusterConfig
from slurm_rl.config.container import ContainerConfig
from slurm_rl.config.data import DataConfig
from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.config.external import ExternalConfig
from slurm_rl.config.job import EvalConfig, JobConfig, LoggingConfig, RayConfig
from slurm_rl.config.model import ModelConfig, fill_auto
from slurm_rl.config.preflight import PreflightConfig
from slurm_rl.config.registry import find_loss
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.rows import ColumnsConfig, inherit_columns
from slurm_rl.config.section import NonNegativeInt, Section, one_of
from slurm_rl.config.supervised import DPOConfig, RMConfig, SFTConfig, SupervisedConfig
from slurm_rl.config.tasks import TASKS, TORCHRUN_TASKS
from slurm_rl.config.train import (
    CheckpointConfig,
    OptimConfig,
    PolicyConfig,
    ReferenceConfig,
    RolloutConfig,
    TrainerConfig,
    WarmupConfig,
)


class RunConfig(Section):
    """The config of one run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,80}$")] = "run"
    """Name of the run, part of the run directory's and job's name: letters, digits and _.- , 81 at most."""
    run_dir: str | None = None
    """Run directory; null: <cluster.run_root>/<name>-<time>."""
    seed: NonNegativeInt = 0
    """Seed of weights, data order and sampling."""
    task: Annotated[str, one_of(TASKS)] = "grpo"
    """Training task: grpo (all algorithms with rollouts); sft, rm (reward model) or dpo, under torchrun; or another
    program: openrlhf, verl, maxtext, command."""
    cluster: ClusterConfig = ClusterConfig()
    """Machines."""
    container: ContainerConfig = ContainerConfig()
    """Container image and runtime."""
    job: JobConfig = JobConfig()
    """Time limit and restarts."""
    preflight: PreflightConfig = PreflightConfig()
    """Node checks."""
    ray: RayConfig = RayConfig()
    """Ray cluster."""
    model: ModelConfig
    """Policy weights and tokenizer."""
    data: DataConfig = DataConfig()
    """Training and evaluation data."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """RL algorithm."""
    policy: PolicyConfig = PolicyConfig()
    """Policy workers."""
    reference: ReferenceConfig = ReferenceConfig()
    """Reference model of the KL term."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling engines."""
    reward: RewardConfig = RewardConfig()
    """Scoring."""
    env: EnvironmentConfig = EnvironmentConfig()
    """Multi-turn episodes."""
    optim: OptimConfig = OptimConfig()
    """Optimizer."""
    critic: CriticConfig = CriticConfig()
    """Critic of PPO."""
    supervised: SupervisedConfig = SupervisedConfig()
    """Batch and length of sft, rm and dpo."""
    sft: SFTConfig = SFTConfig()
    """Supervised fine-tuning."""
    rm: RMConfig = RMConfig()
    """Reward model training."""
    dpo: DPOConfig = DPOConfig()
    """Direct preference optimization."""
    warmup: WarmupConfig = WarmupConfig()
    """Supervised steps before RL."""
    trainer: TrainerConfig = TrainerConfig()
    """RL training loop."""
    eval: EvalConfig = EvalConfig()
    """Evaluation."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    logging: LoggingConfig = LoggingConfig()
    """Metrics and samples."""
    external: ExternalConfig | None = None
    """Program of the tasks openrlhf, verl, maxtext and command."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, tree: Any) -> Any:
        """Resolve `auto` values, and columns that evaluation sets inherit, so that a saved config has both."""
        if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
            return tree
        cluster, data, evaluation = tree.get("cluster"), tree.get("data"), tree.get("eval")
        accelerator = cluster.get("accelerator") if isinstance(cluster, dict) else getattr(cluster, "accelerator", None)
        if isinstance(evaluation, dict) and "sets" in evaluation:
            columns = data if isinstance(data, dict) else {}
            sets = inherit_columns(columns, evaluation["sets"], ColumnsConfig)
            tree = {**tree, "eval": {**evaluation, "sets": sets}}
        return {**tree, "model": fill_auto(tree["model"], has_gpus=(accelerator or "cpu") != "cpu")}

    def with_values(self, **sections: Mapping[str, Any]) -> RunConfig:
        """Return the config with other values of keys, by section."""
        new = {name: getattr(self, name).model_copy(update=dict(values)) for name, values in sections.items()}
        return self.model_copy(update=new)

    @property
    def under_torchrun(self) -> bool:
        """Whether torchrun starts ranks on every node, instead of one driver on a Ray cluster."""
        if self.external is not None:
            return self.external.start == "torchrun"
        return TASKS[self.task].under_torchrun

    @property
    def has_engines(self) -> bool:
        """Whether the run starts rollout engines."""
        return self.external is None and self.task not in TORCHRUN_TASKS

    @property
    def has_critic(self) -> bool:
        """Whether the run trains a critic."""
        return self.task == "grpo" and self.algorithm.needs_values

    @property
    def policy_holds_reference(self) -> bool:
        """Whether each policy worker also holds the reference model's weights."""
        if self.task != "grpo":
            return self.task == "dpo" and self.dpo.reference == "live"
        # With adapters the base weights are the reference, unless warmup steps change the initial policy.
        is_base = self.model.lora is not None and self.warmup.num_steps == 0 and self.reference.path is None
        return self.algorithm.kl.coef > 0 and self.reference.num_workers is None and not is_base

    @property
    def max_sequence_tokens(self) -> int:
        """Longest training sequence, prompt and completion together, in tokens."""
        if self.task in TORCHRUN_TASKS:
            return self.supervised.max_tokens
        return self.data.max_prompt_tokens + self.rollout.max_tokens

    @property
    def training_environments(self) -> list[EnvironmentConfig]:
        """Environment of each source, or of the run if it has no sources."""
        return [source.env or self.env for source in self.data.sources.values()] or [self.env]

    @property
    def environments(self) -> list[EnvironmentConfig]:
        """`training_environments` and the environment of each evaluation set."""
        return [*self.training_environments, *(one.env or self.env for one in self.eval.sets.values())]

    @property
    def has_async_engines(self) -> bool:
        """Whether rollout engines accept requests while others are in flight."""
        is_free = any(env.has_pool and env.schedule == "async" for env in self.environments)
        return (
            self.rollout.inflight_weight_updates
            or is_free
            or any(env.agent_command is not None for env in self.training_environments)
        )

    @property
    def truncates_distribution(self) -> bool:
        """Whether some rows are sampled from another distribution than that of the weights."""
        sampled = [self.rollout.model_copy(update=source.sampling()) for source in self.data.sources.values()]
        return any(rollout.truncates_distribution for rollout in sampled or [self.rollout])

    @property
    def correction_kind(self) -> str | None:
        """Importance correction with `auto` resolved: a name in CORRECTIONS; see CorrectionConfig."""
        kind = self.algorithm.correction.kind
        if kind != "auto":
            return kind
        rollout = self.rollout
        exact = self.model.dtype == "float32" and rollout.max_off_policy_steps == 0 and not rollout.engine_args
        if exact and not self.truncates_distribution:
            return None
        return "geometric_mask" if find_loss(self.algorithm.loss).per_sequence else "token_tis"
