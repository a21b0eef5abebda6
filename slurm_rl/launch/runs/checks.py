"""Checks at submit time that look at files; nothing is queued before they pass."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slurm_rl.config.engine_args import SERVER, check_engine_args
from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.config.sources import each_set, each_source
from slurm_rl.config.user_parts import check_function, named_functions
from slurm_rl.errors import ConfigError, MissingLibraryError, RunDirError, SlurmRLError
from slurm_rl.launch.controller.create import check_is_free
from slurm_rl.launch.controller.record import has_finished, not_finished
from slurm_rl.launch.hooks import check_checkpoint_evals
from slurm_rl.launch.jobs import read_states
from slurm_rl.launch.runs.find import open_run, resolve
from slurm_rl.launch.runs.long_warmups import find_long_warmups
from slurm_rl.launch.runs.model_checks import (
    check_family,
    check_lora_targets,
    check_reward_model,
    check_same_model,
    check_weight_files,
)
from slurm_rl.launch.runs.model_shape import check_template, read_object, sees_images, uses_chat_template
from slurm_rl.plan.image_file import check_image_is_there
from slurm_rl.plan.job import JobPlan
from slurm_rl.rewards.check_references import check_references
from slurm_rl.run_dir.run_dir import RunDir

Tell = Callable[[str], object]
"""Takes warnings and notes for the user, one line per call."""


def check_submission(
    config: RunConfig, plan: JobPlan, directory: RunDir, tell: Tell, *, is_stage: bool = False
) -> None:
    """Run the checks of `submit` that need no cluster; write nothing.

    Args:
        is_stage: a stage of a pipeline: the run of job.depends_on will be submitted before it.

    Raises:
        ConfigError, DataError: with all refusals.
    """
    place, image = (lambda: _check_place(directory)), (lambda: check_image_is_there(plan))
    evals = [lambda: check_checkpoint_evals(config, directory)] if config.eval.on_checkpoint else []
    _raise_all([place, *_checks_of_inputs(config, tell, is_stage=is_stage), image, *evals])


def check_inputs(config: RunConfig, tell: Tell, *, is_new: bool = True) -> None:
    """Check the model folder, the data files and the user's functions that this machine can see.

    Args:
        is_new: False if the run already has copies of the files with functions.

    Raises:
        ConfigError, DataError: with field, file and line of all errors.
    """
    _raise_all(_checks_of_inputs(config, tell, is_new=is_new))


def _checks_of_inputs(
    config: RunConfig, tell: Tell, *, is_new: bool = True, is_stage: bool = False
) -> list[Callable[[], None]]:
    after = [functools.partial(_check_after, config)] if is_new and not is_stage else []
    if config.external is not None:  # its program checks its own
        return [*after]
    schedules = functools.partial(_check_schedules, config, tell)
    named = named_functions(config) if is_new else {}
    functions = [functools.partial(check_function, config, key, spec) for key, spec in named.items()]
    if config.cluster.launcher_entry.existing:  # its nodes see other folders than this machine does
        return [*after, schedules, *functions]
    checks = [
        _check_model,
        _check_classifier,
        lambda config: _check_data(config, tell),
        _check_templates,
        _check_reward_models,
    ]
    if not config.cluster.internet:
        from slurm_rl.launch.runs.offline_checks import check_local_files

        checks.append(check_local_files)
    if config.cluster.python is None and config.container.image is None:  # this Python is the trainer's
        checks = [_check_checkpoint_url, _check_vllm_args, *checks]
    return [*after, schedules, *(functools.partial(check, config) for check in checks), *functions]


def _check_vllm_args(config: RunConfig) -> None:
    check_engine_args(config.rollout.engine_args)
    check_engine_args(config.reward.judge.server.vllm_args, "reward.judge.server.vllm_args", SERVER)


def _raise_all(checks: Sequence[Callable[[], None]]) -> None:
    """Run all checks, then raise their errors: a single one unchanged, several as one."""
    found: list[SlurmRLError] = []
    for check in checks:
        try:
            check()
        except SlurmRLError as error:
            found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        lines = [str(error).replace("\n", "\n    ") for error in found]
        raise ConfigError("\n  ".join([f"{len(found)} errors:", *lines]))


def _check_place(directory: RunDir) -> None:
    """Refuse a run directory that is not empty or cannot be created."""
    check_is_free(directory)
    parent = next(path for path in [directory.path, *directory.path.parents] if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise RunDirError(
            "the run directory must be in a writable folder",
            seen=f"{directory.path}, below {parent}",
            action="choose another run_dir or cluster.run_root",
        )


def _check_checkpoint_url(config: RunConfig) -> None:
    """Check that the library of the URL is installed, without a connection."""
    if config.checkpoint.upload_url is None:
        return
    from slurm_rl.run_dir.filesystem import open_filesystem

    open_filesystem(config.checkpoint.upload_url)


def _check_after(config: RunConfig) -> None:
    """Refuse a job.depends_on that is no run, will not finish, or has no queue to wait in."""
    if config.job.depends_on is None:
        return
    launcher, before = config.cluster.launcher, open_run(expand_user(config.job.depends_on))
    if has_finished(before):
        return
    [state] = read_states([before])
    if not config.cluster.launcher_entry.is_queue:
        raise ConfigError(
            f"with cluster.launcher={launcher} the run of job.depends_on must have finished: there is no queue to "
            f"wait in",
            seen=f"{before.path} is {state}",
            action="wait for its end, or put both into one file: python -m slurm_rl submit --help",
        )
    if not state.is_alive and state.error is None:
        raise not_finished(before, state)


def _check_model(config: RunConfig) -> None:
    folders = {
        "model.path": config.model.path,
        "model.init_from": config.model.init_from,
        "critic.init_from": config.critic.init_from,
        "reference.path": config.reference.path,
        "reward.model.path": config.reward.model.path,
    }
    comes = None if config.job.depends_on is None else RunDir(resolve(str(expand_user(config.job.depends_on)))).export
    for field, value in folders.items():
        if value and comes is not None and expand_user(value).absolute() == comes:
            continue
        # A name without a slash in front may be one of the hub; the node looks that up in its cache.
        if value and value.startswith(("/", "./", "../", "~")) and not expand_user(value).is_dir():
            raise ConfigError(f"{field} must be a folder", seen=value, action="fix the path")
        if value and expand_user(value).is_dir():
            check_weight_files(field, expand_user(value))
    if (source := config.model.source) is not None:
        if config.model.path is None and not (expand_user(source) / "config.json").is_file():
            raise ConfigError("model.from_config must be a folder with config.json", seen=source, action="fix the path")
        _check_pad_token(expand_user(source))
    check_family(config.model, is_sampled=config.has_engines)
    check_lora_targets(config.model)
    check_same_model("model.init_from", config.model.init_from, config.model)
    check_same_model("critic.init_from", config.critic.init_from, config.model)


def _check_classifier(config: RunConfig) -> None:
    """Refuse a vision-language model as the base of a critic or a reward model, which read only text."""
    needs_critic = config.task == "grpo" and config.algorithm.needs_values
    if (needs_critic or config.task == "rm") and sees_images(config.model):
        wanted = "algorithm.advantage=gae trains a critic" if needs_critic else "task=rm trains a reward model"
        raise ConfigError(
            "a critic or a reward model needs a text model: transformers has no classifier of a vision-language one",
            seen=f"{config.model.source}, and {wanted}",
            action="choose a text model, or an algorithm without a critic, such as +algorithm=grpo",
        )


def _check_pad_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    if not read_object(path).get("pad_token"):
        raise ConfigError(
            "model.path must have a tokenizer with a pad token",
            seen=str(path),
            action='add "pad_token" (often the end-of-text token) to tokenizer_config.json',
        )


def _check_templates(config: RunConfig) -> None:
    for one in (*each_source(config).values(), *each_set(config).values()):
        check_template(one)


def _check_reward_models(config: RunConfig) -> None:
    for one in (*each_source(config).values(), *each_set(config).values()):
        check_reward_model(one.reward.model, uses_chat_template(config))


def _check_data(config: RunConfig, tell: Tell) -> None:
    # Reading rows needs no torch; the same functions load them in the trainer.
    from slurm_rl.data.load_data import load_answers, load_pairs, load_set, require_one_batch

    try:
        if config.task != "grpo":
            examples = load_answers(config.data).train if config.task == "sft" else load_pairs(config.data).train
            require_one_batch(len(examples), config.supervised.batch_size)
            _tell_all(find_long_warmups(config, len(examples)), tell)
            return
        for one in [] if config.eval.only else each_source(config).values():
            _check_prompts(one, tell)
        for name, one in each_set(config).items():
            rows = load_set(one.data, config.eval.sets[name].num_rows, with_info=one.env.is_on)
            if one.data.train != "addition" and not one.env.is_on:
                check_references(one.reward, rows, tell)
    except MissingLibraryError as error:
        tell(f"warning: the run, not this command, checks the data: {error}")


def _check_schedules(config: RunConfig, tell: Tell) -> None:
    if config.task == "grpo" and not config.eval.only:
        _tell_all(find_long_warmups(config), tell)


def _tell_all(lines: Iterable[str], tell: Tell) -> None:
    for line in lines:
        tell(line)


def _check_prompts(config: RunConfig, tell: Tell) -> None:
    from slurm_rl.data.images import check_sources, list_images
    from slurm_rl.data.load_data import load_prompts

    split = load_prompts(config.data, with_info=config.env.is_on)
    rows = [*split.train, *split.held_out]
    images = [(source, row.name) for row in rows for source in list_images(row.prompt, row.name)]
    if (images or config.data.image_key is not None) and sees_images(config.model) is False:
        raise ConfigError(
            "data with images needs a vision-language model",
            seen=f"{len(images)} images, data.image_key={config.data.image_key} and a text-only model",
            action="set model.path to a Qwen2.5-VL, Qwen3-VL or Qwen3.5, or data.image_key=null and no images",
        )
    check_sources(images)
    if config.data.train != "addition" and not config.env.is_on:
        check_references(config.reward, rows, tell)
