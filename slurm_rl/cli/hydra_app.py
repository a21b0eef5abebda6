"""Hands a command line to Hydra's own main, for --cfg, --info and shell completion."""

from __future__ import annotations

import sys

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.words import Words
from slurm_rl.config.load import compose, conf_dir, register_schema, site_dirs
from slurm_rl.config.overrides import normalise_words


def run_hydra(words: list[str], told: Words) -> int:
    """Let Hydra parse `words` and print; what would not compose is told in our words first.

    Raises:
        ConfigError: the overrides do not compose.
    """
    import hydra

    register_schema()
    if told.flags.cfg or told.flags.info:
        compose(check_overrides(told.rest), config_dir=told.flags.config_dir)
    # --config-dir is a flag of Hydra's, too; the variable is ours alone.
    search_path = [f"hydra.searchpath=[file://{folder}]" for folder in site_dirs(None)]
    sys.argv = ["python -m slurm_rl", *normalise_words(words), *search_path]

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def application(config: object) -> None:
        raise AssertionError("only flags that print reach Hydra's main")

    try:
        application()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2 if end.code else 0
    return 0
