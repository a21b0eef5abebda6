"""Rules of the task: its lengths, its critic, the keys it needs and the keys it does not use."""

from collections.abc import Iterator

from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source
from slurm_rl.config.tasks import EXTERNAL_TASKS, OUR_TASKS, TORCHRUN_TASKS

_INSTEAD = {
    "rollout.max_tokens": "supervised.max_tokens",
    "data.max_prompt_tokens": "supervised.max_tokens",
    "trainer.prompts_per_step": "supervised.batch_size",
    "trainer.num_steps": "supervised.max_steps or supervised.num_epochs",
    "trainer.num_epochs": "supervised.num_epochs",
}
"""Keys of supervised tasks that correspond to a key of task=grpo."""


def task_problems(config: RunConfig) -> Iterator[str]:
    """Check lengths and sections of the task."""
    if (config.external is None) != (config.task in OUR_TASKS):
        has, words = ("none", "external=verl") if config.external is None else ("one", "task=command")
        yield (
            f"only the tasks {', '.join(EXTERNAL_TASKS)} have a section external; got "
            f"task={config.task} with {has}. Next: {words}, or an experiment that sets both"
        )
    if config.supervised.patience is not None and not (config.eval.interval and config.data.num_eval):
        yield (
            "supervised.patience counts evaluations, so it needs eval.interval and data.num_eval above 0; got "
            f"{config.eval.interval} and {config.data.num_eval}. Next: set both, or supervised.patience=null"
        )
    splits_layers = config.policy.backend == "deepspeed" and config.policy.zero_stage == 3
    if splits_layers and config.model.lora and config.model.lora.target_parameters:
        yield (
            "model.lora.target_parameters needs whole parameters in a layer's forward pass, which ZeRO-3 splits; "
            "got policy.zero_stage=3. Next: policy.backend=fsdp2, or policy.zero_stage=2"
        )
    if config.task == "rm" and config.data.image_key is not None:
        yield (
            f"data.image_key is not for task=rm, whose models read only text; got {config.data.image_key!r}. "
            "Next: data.image_key=null"
        )


def eval_job_problems(config: RunConfig) -> Iterator[str]:
    """Check that evaluation jobs have rows and a queue."""
    on_checkpoint, launcher = config.eval.on_checkpoint, config.cluster.launcher
    if not on_checkpoint and config.eval.job != type(config.eval.job)():
        yield f"eval.job is for eval.on_checkpoint=true; got {on_checkpoint}. Next: leave it out, or set both"
    if on_checkpoint and (config.eval.only or not config.eval.sets):
        yield (
            f"eval.on_checkpoint evaluates the eval.sets of a training run; got eval.only={config.eval.only} and "
            f"{len(config.eval.sets)} sets. Next: +eval.sets.mine.data=my.jsonl"
        )
    if on_checkpoint and not config.cluster.launcher_entry.is_queue:
        yield (
            f"eval.on_checkpoint submits jobs, so it needs a queue; got cluster.launcher={launcher}. "
            "Next: cluster.launcher=slurm, or eval.interval, which evaluates in the run"
        )


def critic_problems(config: RunConfig) -> Iterator[str]:
    """Check keys of a critic, and refuse them if the run trains none."""
    if config.algorithm.needs_values and config.critic.warmup_steps >= config.trainer.num_steps:
        yield (
            "critic.warmup_steps must be < trainer.num_steps, or the policy never learns; got "
            f"{config.critic.warmup_steps} and {config.trainer.num_steps}. Next: lower critic.warmup_steps"
        )
    wanted = {
        "critic.dedicated_gpus": config.critic.dedicated_gpus,
        "critic.num_workers": config.critic.num_workers,
        "reward.model.device=critic": config.reward.model.beside_critic,
    }
    for name, value in wanted.items():
        if value and not config.has_critic:
            yield (
                f"{name} needs a critic, which algorithm.advantage=gae trains; got "
                f"{config.algorithm.advantage!r} with task={config.task}. Next: +algorithm=ppo, or leave it out"
            )
    reward = config.reward
    if reward.model.beside_critic and (reward.url or reward.service.enabled or reward.function):
        yield (
            "reward.model.device=critic scores in the run itself, without reward.url, reward.function and "
            "reward.service.enabled. Next: leave these out, or reward.model.device=cpu"
        )


def unused_keys(config: RunConfig) -> Iterator[str]:
    """Refuse keys that are set but not used by the task."""

    from slurm_rl.config.usage import find_changed, find_readers

    unused = {key: value for key, value in find_changed(config) if config.task not in find_readers(key, config.task)}
    if not unused:
        return
    first = next(iter(unused))
    instead = _INSTEAD.get(first) if config.task in TORCHRUN_TASKS else None
    yield (
        f"task={config.task} does not read {', '.join(unused)}; got "
        f"{', '.join(f'{key}={value}' for key, value in unused.items())}. Next: leave it out; {first} is read with "
        f"task={', '.join(find_readers(first, config.task))}" + (f", here it is {instead}" if instead else "")
    )


def missing_keys(config: RunConfig) -> Iterator[str]:
    """Name every missing value, each with words that set it."""
    if config.external is not None:  # its program has its own model and data
        return
    model = config.model
    needed: dict[str, tuple[object, str]] = {
        "model.path": (model.source, "model.path=Qwen/Qwen3-4B"),
    }
    if config.eval.only:
        needed["eval.sets"] = (config.eval.sets, "+eval.sets.mine.data=my.jsonl")
        scored = each_set(config).values()
    else:
        needed["data.train"] = (config.data.train or config.data.sources, "+data=gsm8k")
        scored = each_source(config).values()
    if config.task == "grpo":
        needed["a reward (reward.verifiers, function, model.path, url or judge)"] = (
            # An environment may return rewards itself.
            all(one.reward.names_a_scorer or one.env.is_on for one in scored),
            "+reward=math",
        )
    missing = {name: words for name, (value, words) in needed.items() if not value}
    if missing:
        *most, last = missing
        experiment = "+exp=demo" if config.task == "grpo" else f"+exp={config.task}_tiny"
        yield (
            f"a run with task={config.task} must be given {', '.join(most)}{' and ' * bool(most)}{last}; got "
            f"{'none of them' if most else 'none'}. Next: {' '.join(missing.values())}, or an experiment that sets all "
            f"of it: {experiment}"
        )
