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
from slurm_rl.config.kind_rules import kind_problems
from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.config.model import ModelConfig, fill_auto
from slurm_rl.config.preflight import PreflightConfig
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.section import NonNegativeInt, Section, one_of
from slurm_rl.config.sources import source_problems
from slurm_rl.config.supervised import DPOConfig, RMConfig, SFTConfig, SupervisedConfig
from slurm_rl.config.tasks import EXTERNAL_TASKS, OUR_TASKS, TASKS
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
        return {**tree, "model": fill_auto(tree["model"], has_gpus=(accelerator or "cpu") != "cpu")}

    @property
    def under_torchrun(self) -> bool:
        """Whether torchrun starts ranks on every node, in place of one driver on a Ray cluster."""
        if self.external is not None:
            return self.external.start == "torchrun"
        return TASKS[self.task].under_torchrun

    @property
    def correction_kind(self) -> str | None:
        """Which row of CORRECTIONS corrects for the sampler; see CorrectionConfig."""
        kind = self.algorithm.correction.kind
        if kind != "auto":
            return kind
        rollout = self.rollout
        exact = self.model.dtype == "float32" and rollout.max_staleness == 0 and not rollout.engine_args
        if exact and not rollout.bends_distribution:
            return None
        return "sequence_mask" if find_loss(self.algorithm.loss).per_sequence else "token_tis"

    def problems(self) -> Iterator[str]:
        yield from self._task_problems()
        yield from self._critic_problems()
        yield from self._sampling_problems()
        yield from source_problems(self)
        yield from self._machine_problems()
        yield from self._transfer_problems()

    def _task_problems(self) -> Iterator[str]:
        tiny, name = self.model.tiny or self.model.tiny_vl, "tiny" if self.model.tiny else "tiny_vl"
        longest = self.data.max_prompt_tokens + self.rollout.max_tokens
        if tiny is None or self.external is not None:
            pass  # not known here, or an external program's own affair
        elif self.task == "grpo" and longest > tiny.context_length:
            yield (
                f"data.max_prompt_tokens + rollout.max_tokens must be <= model.{name}.context_length; got "
                f"{self.data.max_prompt_tokens} + {self.rollout.max_tokens} > {tiny.context_length}. "
                "Next: shorten either, or raise the context"
            )
        elif self.task != "grpo" and self.supervised.max_tokens > tiny.context_length:
            yield (
                f"supervised.max_tokens must be <= model.{name}.context_length; got "
                f"{self.supervised.max_tokens} > {tiny.context_length}. Next: lower it, or raise the context"
            )
        if self.supervised.patience is not None and not (self.eval.every and self.data.num_eval):
            yield (
                "supervised.patience counts evaluations, so it needs eval.every and data.num_eval above 0; got "
                f"{self.eval.every} and {self.data.num_eval}. Next: set both, or supervised.patience=null"
            )
        if self.task == "rm" and self.data.image_key is not None:
            yield (
                f"data.image_key is not for task=rm, whose models read text alone; got {self.data.image_key!r}. "
                "Next: data.image_key=null"
            )
        if (self.external is None) != (self.task in OUR_TASKS):
            has, words = ("none", "external=verl") if self.external is None else ("one", "task=command")
            yield (
                f"the tasks {', '.join(EXTERNAL_TASKS)}, and they alone, have a section external; got "
                f"task={self.task} with {has}. Next: {words}, or an experiment that says both"
            )

    def _critic_problems(self) -> Iterator[str]:
        if self.algorithm.needs_values and self.critic.warmup_steps >= self.trainer.num_steps:
            yield (
                "critic.warmup_steps must be < trainer.num_steps, or the policy never learns; got "
                f"{self.critic.warmup_steps} and {self.trainer.num_steps}. Next: lower critic.warmup_steps"
            )
        wanted = {
            "critic.apart": self.critic.apart,
            "critic.num_workers": self.critic.num_workers,
            "reward.model.device=critic": self.reward.model.beside_critic,
        }
        for name, value in wanted.items():
            if value and not (self.task == "grpo" and self.algorithm.needs_values):
                yield (
                    f"{name} needs a critic, which algorithm.advantage=gae trains; got "
                    f"{self.algorithm.advantage!r} with task={self.task}. Next: +algorithm=ppo, or leave it out"
                )
        if self.reward.model.beside_critic and (self.reward.url or self.reward.service.enabled or self.reward.function):
            yield (
                "reward.model.device=critic scores in the run itself, without reward.url, reward.function and "
                "reward.service.enabled. Next: leave these out, or reward.model.device=cpu"
            )

    def _sampling_problems(self) -> Iterator[str]:
        rounds, staleness = self.algorithm.dynamic_sampling_rounds, self.rollout.max_staleness
        if rounds > 1 and staleness > 0:
            yield (
                "algorithm.dynamic_sampling_rounds must be 1 when rollout.max_staleness is above 0, since which "
                f"prompts are needed is known only in the step; got {rounds} and {staleness}. "
                "Next: rollout.max_staleness=0, or algorithm.dynamic_sampling_rounds=1"
            )
        rollout, coefficient = self.rollout, self.algorithm.kl.coefficient
        if rollout.bends_distribution and coefficient > 0:
            yield (
                "a KL term needs completions sampled from the policy itself, so rollout.top_p=1, top_k=0, min_p=0 and "
                f"repetition_penalty=1; got {rollout.top_p}, {rollout.top_k}, {rollout.min_p}, "
                f"{rollout.repetition_penalty} and algorithm.kl.coefficient={coefficient}. "
                "Next: leave these out, or algorithm.kl.coefficient=0"
            )
        if self.reference.num_workers is not None and self.algorithm.kl.coefficient == 0:
            yield (
                "reference.num_workers needs algorithm.kl.coefficient > 0, which alone asks the reference; got 0. "
                "Next: reference.num_workers=null"
            )

    def _machine_problems(self) -> Iterator[str]:
        yield from kind_problems(self)
        cluster = self.cluster
        not_there = {
            f"task={self.task}": TASKS[self.task].under_torchrun,
            "external.start=torchrun": self.external is not None and self.under_torchrun,
            f"container.runtime={self.container.runtime}": self.container.runtime != "none",
            "cluster.nodes": bool(cluster.nodes),
            f"job.num_spare_nodes={self.job.num_spare_nodes}": self.job.num_spare_nodes > 0,
            "cluster.setup": bool(cluster.setup),
        }
        wrong = [name for name, is_wrong in not_there.items() if is_wrong]
        if LAUNCHERS[cluster.launcher].existing and wrong:
            yield (
                "a Ray cluster of others has its own image, its own nodes and no torchrun; got "
                f"{', '.join(wrong)} with cluster.launcher=ray. Next: leave it out, or use Slurm or this machine"
            )
        if (cluster.accelerator == "cpu") != (cluster.gpus_per_node == 0):
            yield (
                "cluster.gpus_per_node must be 0 on accelerator 'cpu' and above 0 elsewhere; "
                f"got {cluster.gpus_per_node} on {cluster.accelerator!r}"
            )
        if self.model.attention == "flash_attention_2" and self.cluster.accelerator == "cpu":
            yield "model.attention=flash_attention_2 needs a GPU; got accelerator 'cpu'. Next: model.attention=auto"

    def _transfer_problems(self) -> Iterator[str]:
        transfer = self.rollout.weight_transfer
        if transfer in ("nccl", "ipc") and self.cluster.accelerator == "cpu":
            yield (
                f"rollout.weight_transfer={transfer} needs GPUs; got accelerator 'cpu'. "
                "Next: rollout.weight_transfer=auto"
            )
        if transfer == "gloo" and self.cluster.accelerator != "cpu":
            yield (
                "rollout.weight_transfer=gloo is for accelerator 'cpu'; "
                f"got {self.cluster.accelerator!r}. Next: rollout.weight_transfer=auto"
            )
