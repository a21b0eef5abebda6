"""verl 0.9: one Hydra program, `python3 -m verl.trainer.main_ppo key=value ...`, on the Ray cluster."""

from __future__ import annotations

from slurm_rl.config.external import ExternalConfig
from slurm_rl.errors import ConfigError
from slurm_rl.external.arguments import (
    ExternalRun,
    Settings,
    map_fields,
    merge,
    render_overrides,
    unknown_choice,
)

_NAMES = {
    "model": "actor_rollout_ref.model.path",
    "critic_model": "critic.model.path",
    "reward_model": "reward.reward_model.model_path",
    "reward_function": "reward.custom_reward_function.path",
    "train_data": "data.train_files",
    "eval_data": "data.val_files",
    "input_key": "data.prompt_key",
    "max_samples": "data.train_max_samples",
    "max_prompt_tokens": "data.max_prompt_length",
    "max_response_tokens": "data.max_response_length",
    "samples_per_prompt": "actor_rollout_ref.rollout.n",
    "prompts_per_step": "data.train_batch_size",
    "micro_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "micro_rollout_batch_size": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "epochs": "actor_rollout_ref.actor.ppo_epochs",
    "episodes": "trainer.total_epochs",
    "steps": "trainer.total_training_steps",
    "lr": "actor_rollout_ref.actor.optim.lr",
    "critic_lr": "critic.optim.lr",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "gpu_memory": "actor_rollout_ref.rollout.gpu_memory_utilization",
    "save_every": "trainer.save_freq",
    "keep_checkpoints": "trainer.max_actor_ckpt_to_keep",
    "wandb_project": "trainer.project_name",
}
_ADVANTAGES = {
    "gae": "gae",
    "grpo": "grpo",
    "rloo": "rloo",
    "reinforce_pp": "reinforce_plus_plus",
    "reinforce_pp_baseline": "reinforce_plus_plus_baseline",
}
_LOSSES = {"ppo": "vanilla", "gspo": "gspo"}
_KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def build_argv(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    """Return the command line. Raises ConfigError for what verl cannot do."""
    handled = ("train_batch_size", "advantage", "policy_loss", "kl_coefficient", "kl_in_loss", "kl_estimator")
    settings = map_fields(config, _NAMES, handled)
    settings |= _algorithm(config) | _kl(config) | _batches(config)
    settings |= {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": config.tensor_parallel,
        "trainer.nnodes": run.nodes,
        "trainer.n_gpus_per_node": run.gpus_per_node,
        "trainer.logger": ["console", "wandb"] if config.wandb_project is not None else ["console"],
        "trainer.experiment_name": run.name,
        "trainer.default_local_dir": run.checkpoints,
        "trainer.resume_mode": "auto" if run.resume else "disable",
    }
    start = config.start or ("python3", "-m", "verl.trainer.main_ppo")
    return (*start, *render_overrides(merge(config, settings)), *config.argv)


def _algorithm(config: ExternalConfig) -> Settings:
    settings: Settings = {}
    if config.advantage is not None:
        if config.advantage not in _ADVANTAGES:
            raise unknown_choice("advantage", config.advantage, config, _ADVANTAGES)
        settings["algorithm.adv_estimator"] = _ADVANTAGES[config.advantage]
    if config.policy_loss is not None:
        settings["actor_rollout_ref.actor.policy_loss.loss_mode"] = _LOSSES[config.policy_loss]
    if config.reward_model is not None:
        settings["reward.reward_model.enable"] = True
        settings["reward.reward_model.rollout.name"] = "vllm"
    return settings


def _kl(config: ExternalConfig) -> Settings:
    """verl has two sets of keys, and both are off by default."""
    if config.kl_coefficient is None:
        if config.kl_in_loss is None and config.kl_estimator is None:
            return {}
        raise ConfigError(
            "external.kl_coefficient must be set beside kl_in_loss or kl_estimator: verl has no KL by default",
            seen="null",
            action="set external.kl_coefficient, such as 0.001",
        )
    estimator = None if config.kl_estimator is None else _KL[config.kl_estimator]
    if config.kl_in_loss:
        actor = "actor_rollout_ref.actor"
        return {
            f"{actor}.use_kl_loss": True,
            f"{actor}.kl_loss_coef": config.kl_coefficient,
            f"{actor}.kl_loss_type": estimator,
        }
    return {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_ctrl.kl_coef": config.kl_coefficient,
        "algorithm.kl_penalty": estimator,
    }


def _batches(config: ExternalConfig) -> Settings:
    """An optimizer step counts prompts in verl; and critic and reference have micro batches of their own."""
    settings: Settings = {}
    if config.train_batch_size is not None:
        group = config.samples_per_prompt or 1
        if config.train_batch_size % group:
            raise ConfigError(
                "external.train_batch_size must be a multiple of samples_per_prompt: verl splits batches by prompt",
                seen=f"{config.train_batch_size} and {group}",
                action=f"set external.train_batch_size={config.train_batch_size // group * group or group}",
            )
        settings["actor_rollout_ref.actor.ppo_mini_batch_size"] = config.train_batch_size // group
    if config.micro_batch_size is not None and config.advantage in (None, "gae"):
        settings["critic.ppo_micro_batch_size_per_gpu"] = config.micro_batch_size
    if config.micro_rollout_batch_size is not None:
        settings["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] = config.micro_rollout_batch_size
    return settings
