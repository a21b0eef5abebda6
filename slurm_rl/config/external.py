"""A trainer that is not ours, run on the cluster that we bring up: what its argument lists have in common."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from slurm_rl.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section

Program: TypeAlias = Literal["openrlhf", "verl", "maxtext", "command"]
Role: TypeAlias = Literal["actor", "ref", "critic", "reward"]
Argument: TypeAlias = bool | int | float | str | list[int | float | str] | None
GpuShare = Annotated[float, Field(gt=0, le=1)]


class ExternalConfig(Section):
    """The common fields of OpenRLHF, verl and MaxText; null leaves a field to the program's own default.

    A field that the chosen program has no argument for is an error. Whatever is not here goes under `args`.
    """

    program: Program = "command"
    """Which trainer; `command` runs `argv` as it is."""
    method: Literal["ppo", "sft", "rm", "dpo"] = "ppo"
    """What it trains; `ppo` stands for all rules that sample (GRPO, RLOO, ...). Only OpenRLHF has others."""
    flags: Literal["dotted", "flat"] = "dotted"
    """Style of the argument names: `dotted` since OpenRLHF 0.10 and MaxText's `rl:` section, `flat` before."""
    start: tuple[str, ...] | None = None
    """The program and what comes before its settings; null takes python3 and its usual module."""
    argv: tuple[str, ...] = ()
    """Of `command` the whole command line; of the others, words to add at the end."""
    args: dict[str, Argument] = Field(default={})
    """The program's own settings by their own names, as given: true for a bare flag, null to drop one set here."""

    model: str | None = None
    """Weights to train: a folder or hub name (MaxText: its name of the architecture)."""
    tokenizer: str | None = None
    """Tokenizer, where the program wants it apart."""
    init_from: str | None = None
    """MaxText: checkpoint whose parameters are loaded at the start."""
    critic_model: str | None = None
    """Weights the critic starts from."""
    reward_model: str | None = None
    """Trained reward model."""
    reward_url: str | None = None
    """OpenRLHF: reward service, or a Python file with reward_func."""
    reward_function: str | None = None
    """verl: Python file with compute_score."""
    train_data: str | None = None
    """Data to train on."""
    eval_data: str | None = None
    """Data to evaluate on."""
    input_key: str | None = None
    """Column with the prompt."""
    label_key: str | None = None
    """Column with the reference answer."""
    max_samples: PositiveInt | None = None
    """Rows to use at most."""
    max_prompt_tokens: PositiveInt | None = None
    """Longest prompt."""
    max_response_tokens: PositiveInt | None = None
    """Longest completion."""

    advantage: Literal["gae", "grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"] | None = None
    """Advantage estimator, in this package's names."""
    policy_loss: Literal["ppo", "gspo"] | None = None
    """Clipped ratio of tokens, or of sequences."""
    samples_per_prompt: PositiveInt | None = None
    """Completions of one prompt."""
    prompts_per_step: PositiveInt | None = None
    """Prompts that one sampling phase takes."""
    train_batch_size: PositiveInt | None = None
    """Completions of one optimizer step, over all GPUs (rows, without sampling)."""
    micro_batch_size: PositiveInt | None = None
    """Completions of one backward pass on one GPU."""
    micro_rollout_batch_size: PositiveInt | None = None
    """Completions of one forward pass for logprobs on one GPU."""
    epochs: PositiveInt | None = None
    """Passes over the completions of a sampling phase (over the data, without sampling)."""
    episodes: PositiveInt | None = None
    """Passes over the prompts."""
    steps: PositiveInt | None = None
    """Sampling phases at most."""
    lr: PositiveFloat | None = None
    """Learning rate."""
    critic_lr: PositiveFloat | None = None
    """Learning rate of the critic."""
    kl_coefficient: NonNegativeFloat | None = None
    """Weight of the KL divergence to the start."""
    kl_in_loss: bool | None = None
    """KL as a term of the loss; false takes it from the reward."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Schulman's estimator of the KL."""
    temperature: PositiveFloat | None = None
    """Of sampling."""

    gpus: dict[Role, PositiveInt] = Field(default={})
    """OpenRLHF: GPUs of a model; one that is not named has all, or when GPUs are not shared by all, as many as the
    actor, which has its share of half of them: the other half is for engines."""
    colocate: Literal["all", "pairs", "none"] = "all"
    """OpenRLHF: who shares GPUs; `pairs` is actor with reference, and critic with reward."""
    engines: PositiveInt | None = None
    """vLLM engines; null: as many as the GPUs hold beside the models, or with colocate=all on the same GPUs."""
    tensor_parallel: PositiveInt = 1
    """GPUs of one engine."""
    gpu_memory: GpuShare | None = None
    """Share of a GPU's memory that an engine takes."""
    zero_stage: Literal[0, 1, 2, 3] | None = None
    """DeepSpeed ZeRO stage."""

    save_every: PositiveInt | None = None
    """Steps between checkpoints."""
    keep_checkpoints: PositiveInt | None = None
    """Checkpoints to keep."""
    wandb_project: str | None = None
    """Weights & Biases project; null switches it off. The key is read from the environment."""

    @model_validator(mode="after")
    def _a_command_has_words(self) -> Self:
        if self.program == "command" and not self.argv:
            raise ValueError(
                "argv must name a program when program=command; got none. Next: external.argv=[python,x.py]"
            )
        if self.program != "openrlhf" and self.method != "ppo":
            raise ValueError(
                f"method={self.method} needs program=openrlhf; got {self.program}. "
                "Next: external.program=command with the trainer's own command line"
            )
        return self
