"""From the `external` section to the command line of its program. Add one: write `build_argv`, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from slurm_rl.config.external import ExternalConfig, Program
from slurm_rl.external import command, maxtext, openrlhf, verl
from slurm_rl.external.arguments import ExternalRun

PROGRAMS: Final[dict[Program, Callable[[ExternalConfig, ExternalRun], tuple[str, ...]]]] = {
    "openrlhf": openrlhf.build_argv,
    "verl": verl.build_argv,
    "maxtext": maxtext.build_argv,
    "command": command.build_argv,
}


def build_external_argv(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    """Return the command line of the external trainer; the same for the same arguments.

    Raises:
        ConfigError: a field that the program has no argument for, a secret, or a layout that does not fit.
    """
    return PROGRAMS[config.program](config, run)
