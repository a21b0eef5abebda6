"""OpenRLHF: `--dotted.flags` since 0.10, `--flat_flags` before.

Sampling methods run as one driver on the Ray cluster; sft, rm and dpo are DeepSpeed programs for torchrun.
"""

from __future__ import annotations

from slurm_rl.config.external import ExternalConfig, Role
from slurm_rl.errors import ConfigError
from slurm_rl.external.arguments import (
    WANDB_KEY,
    ExternalRun,
    Settings,
    map_fields,
    merge,
    render_flags,
    unknown_choice,
)

MODULES = {
    "ppo": "openrlhf.cli.train_ppo_ray",
    "sft": "openrlhf.cli.train_sft",
    "rm": "openrlhf.cli.train_rm",
    "dpo": "openrlhf.cli.train_dpo",
}

# ours -> (dotted, flat)
_SHARED = {
    "train_batch_size": ("train.batch_size", "train_batch_size"),
    "micro_batch_size": ("train.micro_batch_size", "micro_train_batch_size"),
    "epochs": ("train.max_epochs", "max_epochs"),
    "zero_stage": ("ds.zero_stage", "zero_stage"),
    "max_samples": ("data.max_samples", "max_samples"),
    "eval_data": ("eval.dataset", "eval_dataset"),
    "save_every": ("ckpt.save_steps", "save_steps"),
    "keep_checkpoints": ("ckpt.max_num", "max_ckpt_num"),
    "wandb_project": ("logger.wandb.project", "wandb_project"),
}
_SAMPLING = {
    **_SHARED,
    "model": ("actor.model_name_or_path", "pretrain"),
    "critic_model": ("critic.model_name_or_path", "critic_pretrain"),
    "reward_model": ("reward.model_name_or_path", "reward_pretrain"),
    "reward_url": ("reward.remote_url", "remote_rm_url"),
    "train_data": ("data.prompt_dataset", "prompt_data"),
    "input_key": ("data.input_key", "input_key"),
    "label_key": ("data.label_key", "label_key"),
    "max_response_tokens": ("rollout.max_new_tokens", "generate_max_len"),
    "samples_per_prompt": ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
    "prompts_per_step": ("rollout.batch_size", "rollout_batch_size"),
    "micro_rollout_batch_size": ("rollout.micro_batch_size", "micro_rollout_batch_size"),
    "episodes": ("train.num_episodes", "num_episodes"),
    "lr": ("actor.adam.lr", "actor_learning_rate"),
    "critic_lr": ("critic.adam.lr", "critic_learning_rate"),
    "kl_coefficient": ("algo.kl.init_coef", "init_kl_coef"),
    "kl_in_loss": ("algo.kl.use_loss", "use_kl_loss"),
    "kl_estimator": ("algo.kl.estimator", "kl_estimator"),
    "temperature": ("rollout.temperature", "temperature"),
    "gpu_memory": ("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization"),
}
_SUPERVISED = {
    **_SHARED,
    "model": ("model.model_name_or_path", "pretrain"),
    "train_data": ("data.dataset", "dataset"),
    "lr": ("adam.lr", "learning_rate"),
}
_SFT_KEYS = {"input_key": ("data.input_key", "input_key"), "label_key": ("data.output_key", "output_key")}

_ADVANTAGES = {
    "gae": "gae",
    "grpo": "group_norm",
    "dr_grpo": "dr_grpo",
    "rloo": "rloo",
    "reinforce_pp": "reinforce",
    "reinforce_pp_baseline": "reinforce_baseline",
}
_ENGINES = {
    "num": ("vllm.num_engines", "vllm_num_engines"),
    "tensor_parallel": ("vllm.tensor_parallel_size", "vllm_tensor_parallel_size"),
}
_COLOCATE: dict[str, list[tuple[str, str]]] = {
    "all": [("train.colocate_all", "colocate_all_models")],
    "pairs": [
        ("train.colocate_actor_ref", "colocate_actor_ref"),
        ("train.colocate_critic_reward", "colocate_critic_reward"),
    ],
    "none": [],
}


def build_argv(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    """Return the command line. Raises ConfigError for what this trainer cannot do or does not fit the machines."""
    style = 0 if config.flags == "dotted" else 1
    settings = _sampling(config, run, style) if config.method == "ppo" else _supervised(config, style)
    settings |= _saving(config, run, style)
    start = config.start or _start(config, run)
    return (*start, *render_flags(merge(config, settings)), *config.argv)


def _start(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    module = MODULES[config.method]
    if config.method == "ppo":
        return ("python3", "-m", module)
    if run.nodes > 1:
        raise ConfigError(
            f"cluster.num_nodes must be 1 for OpenRLHF's {config.method}, whose torchrun is started on the head node",
            seen=run.nodes,
            action=f"set cluster.num_nodes=1, or take task={config.method} of this package, which spans nodes",
        )
    return ("torchrun", "--standalone", f"--nproc-per-node={run.gpus_per_node}", "-m", module)


def _sampling(config: ExternalConfig, run: ExternalRun, style: int) -> Settings:
    names = {ours: both[style] for ours, both in _SAMPLING.items()}
    settings = map_fields(config, names, ("max_prompt_tokens", "advantage", "policy_loss", "engines"))
    settings |= _lengths(config, style)
    if config.advantage is not None:
        settings[("algo.advantage.estimator", "advantage_estimator")[style]] = _ADVANTAGES[config.advantage]
    if config.policy_loss is not None:
        if style == 1 and config.policy_loss != "ppo":
            raise unknown_choice("policy_loss", config.policy_loss, config, ["ppo"])
        if style == 0:
            settings["actor.policy_loss_type"] = config.policy_loss
    return settings | _placement(config, run, style)


def _lengths(config: ExternalConfig, style: int) -> Settings:
    """Dotted flags bound prompt and completion together; flat ones bound the prompt."""
    if config.max_prompt_tokens is None:
        return {}
    if style == 1:
        return {"prompt_max_len": config.max_prompt_tokens}
    if config.max_response_tokens is None:
        raise ConfigError(
            "external.max_response_tokens must be set beside max_prompt_tokens: OpenRLHF bounds their sum",
            seen=f"max_prompt_tokens={config.max_prompt_tokens} alone",
            action="set external.max_response_tokens",
        )
    return {"data.max_len": config.max_prompt_tokens + config.max_response_tokens}


def _supervised(config: ExternalConfig, style: int) -> Settings:
    table = {**_SUPERVISED, **(_SFT_KEYS if config.method == "sft" else {})}
    names = {ours: both[style] for ours, both in table.items()}
    settings = map_fields(config, names, ("max_prompt_tokens", "max_response_tokens"))
    if config.max_prompt_tokens is not None and config.max_response_tokens is not None:
        settings[("data.max_len", "max_len")[style]] = config.max_prompt_tokens + config.max_response_tokens
    elif (config.max_prompt_tokens, config.max_response_tokens) != (None, None):
        raise ConfigError(
            f"external.max_prompt_tokens and max_response_tokens must be set together for method={config.method}",
            action="set both: their sum is the longest row",
        )
    return settings


def _saving(config: ExternalConfig, run: ExternalRun, style: int) -> Settings:
    settings: Settings = {
        ("ckpt.path", "ckpt_path")[style]: run.checkpoints,
        ("ckpt.output_dir", "save_path")[style]: run.output,
    }
    if run.resume:
        # Safe at any attempt: without a checkpoint it starts from the beginning.
        settings[("ckpt.load_enable", "load_checkpoint")[style]] = True
    if config.wandb_project is not None:
        settings[("logger.wandb.key", "use_wandb")[style]] = WANDB_KEY
        settings[("logger.wandb.run_name", "wandb_run_name")[style]] = run.name
    return settings


def _placement(config: ExternalConfig, run: ExternalRun, style: int) -> Settings:
    roles = _roles(config)
    actor = config.gpus.get("actor", _share(config, run, roles))
    gpus = {role: config.gpus.get(role, run.num_gpus if config.colocate == "all" else actor) for role in roles}
    engines = config.engines
    if engines is None:
        taken = 0 if config.colocate == "all" else _count_training(config, gpus)
        engines = max(1, (run.num_gpus - taken) // config.tensor_parallel)
    _check_fit(config, run, gpus, engines)
    settings: Settings = {names[style]: True for names in _COLOCATE[config.colocate]}
    for role, count in gpus.items():
        nodes, per_node = _split(role, count, run)
        settings[(f"{role}.num_nodes", f"{role}_num_nodes")[style]] = nodes
        settings[(f"{role}.num_gpus_per_node", f"{role}_num_gpus_per_node")[style]] = per_node
    settings[_ENGINES["num"][style]] = engines
    settings[_ENGINES["tensor_parallel"][style]] = config.tensor_parallel
    return settings


def _share(config: ExternalConfig, run: ExternalRun, roles: list[Role]) -> int:
    """GPUs of a model: all when they are shared, else its share of one half, since the other half samples."""
    if config.colocate == "all":
        return run.num_gpus
    groups = len(roles) if config.colocate == "none" else 2 if len(roles) > 2 else 1
    return max(1, run.num_gpus // 2 // groups)


def _roles(config: ExternalConfig) -> list[Role]:
    """The models that this run has; OpenRLHF trains a critic for gae, which is its default, alone."""
    roles: list[Role] = ["actor", "ref"]
    if config.advantage in (None, "gae"):
        roles.append("critic")
    if config.reward_url is None:
        roles.append("reward")
    return roles


def _check_fit(config: ExternalConfig, run: ExternalRun, gpus: dict[Role, int], engines: int) -> None:
    sampling = engines * config.tensor_parallel
    if config.colocate == "all":
        needed = max(sampling, *gpus.values())
    else:
        needed = _count_training(config, gpus) + sampling
    if needed > run.num_gpus:
        raise ConfigError(
            f"the models and engines must fit the {run.num_gpus} GPUs of {run.nodes} x {run.gpus_per_node}",
            seen=f"{needed} needed: {gpus}, {engines} engines of {config.tensor_parallel}, colocate={config.colocate}",
            action="lower external.gpus or external.engines, or raise cluster.nodes",
        )


def _count_training(config: ExternalConfig, gpus: dict[Role, int]) -> int:
    """GPUs of the models where engines have their own."""
    if config.colocate == "none":
        return sum(gpus.values())
    return max(gpus["actor"], gpus["ref"]) + max(gpus.get("critic", 0), gpus.get("reward", 0))


def _split(role: Role, count: int, run: ExternalRun) -> tuple[int, int]:
    """(nodes, GPUs on each) of a model."""
    if count <= run.gpus_per_node:
        return 1, count
    if count % run.gpus_per_node:
        raise ConfigError(
            f"external.gpus.{role} must be a multiple of cluster.gpus_per_node = {run.gpus_per_node} above one node",
            seen=count,
            action=f"set it to {count - count % run.gpus_per_node}",
        )
    return count // run.gpus_per_node, run.gpus_per_node
