"""Checks at submit time that look at files; nothing is queued before they pass."""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_rl.cli.image_line import check_image_is_there
from slurm_rl.cli.lora_check import check_lora_targets
from slurm_rl.cli.model_shape import sees_images
from slurm_rl.cli.reward_model_check import check_reward_model
from slurm_rl.cli.weights_check import check_same_model
from slurm_rl.config.engine_args import check_engine_args
from slurm_rl.config.paths import expand_user
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, MissingLibraryError, RunDirError, SlurmRLError
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import RunDir
from slurm_rl.slurm.own_folder import check_is_free


def check_submission(config: RunConfig, plan: JobPlan, directory: RunDir) -> None:
    """All that `submit` refuses without a word to a cluster; nothing is written.

    Raises:
        ConfigError, DataError: every refusal at once.
    """
    place, image = (lambda: _check_place(directory)), (lambda: check_image_is_there(plan))
    _raise_all([place, *_checks_of_inputs(config), image])


def check_inputs(config: RunConfig) -> None:
    """Check the model folder, the data files and the reward function that this machine can see.

    Raises:
        ConfigError, DataError: naming the field, the file and the line; of all that are wrong.
    """
    _raise_all(_checks_of_inputs(config))


def _checks_of_inputs(config: RunConfig) -> list[Callable[[], None]]:
    if config.external is not None:  # its program checks its own
        return []
    if config.cluster.launcher == "ray":  # its nodes see other folders than this machine does
        return []
    checks = [_check_model, _check_data, _check_reward]
    if config.cluster.python is None and config.container.image is None:  # this Python is the trainer's
        checks = [_check_checkpoint_url, lambda config: check_engine_args(config.rollout.engine_args), *checks]
    return [functools.partial(check, config) for check in checks]


def _check_reward(config: RunConfig) -> None:
    check_reward(config.reward, config.data.chat_template)


def _raise_all(checks: Sequence[Callable[[], None]]) -> None:
    """Run all checks, then raise what they raised: one error as it is, several as one."""
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
        raise ConfigError("\n  ".join([f"{len(found)} things are wrong:", *lines]))


def _check_place(directory: RunDir) -> None:
    """Refuse a run directory that holds something, or that could not be made, as far as permissions tell."""
    check_is_free(directory)
    parent = next(path for path in [directory.path, *directory.path.parents] if path.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise RunDirError(
            "the run directory must be in a folder that you may write to",
            seen=f"{directory.path}, below {parent}",
            action="choose another run_dir or cluster.run_root",
        )


def _check_checkpoint_url(config: RunConfig) -> None:
    """Look for the library behind the URL; nothing is connected to."""
    if config.checkpoint.url is None:
        return
    from slurm_rl.filesystem import open_filesystem

    open_filesystem(config.checkpoint.url)


def _check_model(config: RunConfig) -> None:
    folders = {
        "model.path": config.model.path,
        "model.init_from": config.model.init_from,
        "critic.init_from": config.critic.init_from,
        "reward.model.path": config.reward.model.path,
    }
    for field, value in folders.items():
        # A name without a slash in front may be one of the hub; the node looks that up in its cache.
        if value and value.startswith(("/", "./", "../", "~")) and not expand_user(value).is_dir():
            raise ConfigError(f"{field} must be a folder", seen=value, action="fix the path")
    if config.model.path:
        _check_pad_token(expand_user(config.model.path))
    check_lora_targets(config.model)
    check_same_model("model.init_from", config.model.init_from, config.model)
    check_same_model("critic.init_from", config.critic.init_from, config.model)


def _check_pad_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            "tokenizer_config.json must be JSON", seen=f"{path}: {error}", action="fetch it again"
        ) from None
    if not (isinstance(tree, dict) and tree.get("pad_token")):
        raise ConfigError(
            "model.path must have a tokenizer with a pad token",
            seen=str(path),
            action='add "pad_token" (often the end-of-text token) to tokenizer_config.json',
        )


def _check_data(config: RunConfig) -> None:
    # Reading rows needs no torch; the same functions load them in the trainer.
    from slurm_rl.data.images import check_sources, list_images
    from slurm_rl.data.load import load_answers, load_pairs, load_prompts, require_one_batch

    try:
        if config.task != "grpo":
            examples = load_answers(config.data).train if config.task == "sft" else load_pairs(config.data).train
            require_one_batch(len(examples), config.supervised.batch_size)
            return
        split = load_prompts(config.data)
    except MissingLibraryError as error:
        print(f"slurm_rl: the data are checked on the node only, since here {error}", file=sys.stderr)
        return
    rows = [*split.train, *split.held_out]
    images = [(source, row.name) for row in rows for source in list_images(row.prompt, row.name)]
    if (images or config.data.image_key is not None) and sees_images(config.model) is False:
        raise ConfigError(
            "data with images needs a vision-language model",
            seen=f"{len(images)} images, data.image_key={config.data.image_key} and a model of text alone",
            action="set model.path to a Qwen2.5-VL or Qwen3-VL, or data.image_key=null and prompts without images",
        )
    check_sources(images)


def check_reward(config: RewardConfig, chat_template: bool | None = None) -> None:
    """Look at the reward model, and for the reward function in its file, which is run in the workers alone.

    Args:
        chat_template: data.chat_template; None of a reward server.

    Raises:
        ConfigError: a model that cannot score, no such file, no Python, or nothing of that name at its top level.
    """
    check_reward_model(config.model, chat_template)
    if config.function is None:
        return
    file, _, name = config.function.rpartition(":")
    try:
        tree = ast.parse(expand_user(file).read_text(encoding="utf-8"), filename=file)
    except OSError as error:
        raise ConfigError(
            "reward.function must name a file that can be read",
            seen=f"{file} ({error.strerror})",
            action="write reward.function=/absolute/path.py:name",
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError("reward.function must name a Python file", seen=f"{file}: {error}") from None
    names = sorted({found for node in tree.body for found in _names_bound_by(node)})
    if name not in names:
        raise ConfigError(f"{file} must define {name}", seen=", ".join(names) or "nothing")


def _names_bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    # Also what an `if` or `try` at the top level binds.
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)] + [
        n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)
    ]
