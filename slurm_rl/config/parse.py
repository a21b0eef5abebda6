"""Validate a composed or saved config."""

from typing import Any

from pydantic import ValidationError

from slurm_rl.config.rules import RULES, RULES_OF_NEW_RUNS
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_parts import with_absolute_files
from slurm_rl.errors import ConfigError


def parse_config(tree: dict[str, Any], *, is_run: bool = False) -> RunConfig:
    """Validate a composed tree.

    Args:
        tree: from `compose` or a saved config.yaml.
        is_run: also apply the rules of new runs: all required keys are set, and no unused ones. False for verbs that
            read only some sections, and for saved configs.

    Raises:
        ConfigError: every invalid field with its dotted path, or the first rule that is broken.
    """

    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        from slurm_rl.config.compose_errors import explain_field

        lines = [explain_field(item) for item in error.errors()]
        raise ConfigError("the config must be valid:\n  " + "\n  ".join(lines)) from None
    for rule in (*RULES, *(RULES_OF_NEW_RUNS if is_run else ())):
        for problem in rule(config):
            raise ConfigError(problem)
    return with_absolute_files(config) if is_run else config
