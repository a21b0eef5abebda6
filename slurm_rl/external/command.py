"""Bring your own script: any command line, as given."""

from __future__ import annotations

from slurm_rl.config.external import ExternalConfig
from slurm_rl.errors import ConfigError
from slurm_rl.external.arguments import ExternalRun, map_fields, merge


def build_argv(config: ExternalConfig, run: ExternalRun) -> tuple[str, ...]:
    """Return `external.argv`. Raises ConfigError for a field that nothing would read."""
    map_fields(config, {})
    if config.args or config.start:
        raise ConfigError(
            "external.args and external.start must be empty for program=command",
            seen=config.args or config.start,
            action="write the whole command line in external.argv",
        )
    merge(config, {})
    return config.argv
