"""MaxText's RL trainer on JAX: a YAML file of its own and `key=value` words after it.

It resumes by itself from base_output_directory/run_name, so an attempt changes nothing but the process.
"""

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

STARTS = {
    "dotted": (
        "python3",
        "-m",
        "src.maxtext.trainers.post_train.rl.train_rl",
        "src/maxtext/configs/post_train/rl.yml",
    ),
    "flat": ("python3", "-m", "src.MaxText.rl.train_rl", "src/MaxText/configs/rl.yml"),
}
_NAMES = {
    "model": "model_name",
    "tokenizer": "tokenizer_path",
    "init_from": "load_parameters_path",
    "train_data": "dataset_name",
    "max_prompt_tokens": "max_prefill_predict_length",
    "prompts_per_step": "batch_size",
    "micro_batch_size": "micro_batch_size",
    "episodes": "num_epoch",
    "steps": "num_batches",
    "lr": "learning_rate",
    "temperature": "decode_sampling_temperature",
    "gpu_memory": "hbm_utilization_vllm",
    "save_every": "checkpoint_period",
    "keep_checkpoints": "max_num_checkpoints_to_keep",
}
_RL_NAMES = {"samples_per_prompt": "num_generations", "epochs": "num_iterations", "kl_coefficient": "grpo_beta"}
_LOSSES = {"ppo": "grpo", "gspo": "gspo-token"}


def build_argv(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    """Return the command line. Raises ConfigError for what MaxText cannot do."""
    section = "rl." if config.flags == "dotted" else ""
    names = _NAMES | {ours: section + theirs for ours, theirs in _RL_NAMES.items()}
    settings: Settings = {"run_name": run.name, "base_output_directory": run.checkpoints}
    settings |= map_fields(config, names, ("max_response_tokens", "advantage", "policy_loss"))
    if config.advantage not in (None, "grpo"):
        raise unknown_choice("advantage", config.advantage, config, ["grpo"])
    if config.policy_loss is not None:
        settings[f"{section}loss_algo"] = _LOSSES[config.policy_loss]
    if config.max_response_tokens is not None:
        if config.max_prompt_tokens is None:
            raise ConfigError(
                "external.max_prompt_tokens must be set beside max_response_tokens: MaxText bounds their sum",
                seen="null",
                action="set external.max_prompt_tokens",
            )
        settings["max_target_length"] = config.max_prompt_tokens + config.max_response_tokens
    if config.tensor_parallel > 1:
        settings["rollout_tensor_parallelism"] = config.tensor_parallel
    start = config.start or STARTS[config.flags]
    return (*start, *render_overrides(merge(config, settings)), *config.argv)
