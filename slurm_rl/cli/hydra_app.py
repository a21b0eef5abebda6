"""Hands a command line to Hydra's own main, for --cfg, --info and shell completion."""

from __future__ import annotations

import sys

from slurm_rl.config.load import conf_dir, register_schema


def run_hydra(words: list[str]) -> int:
    """Let Hydra parse `words`; it prints and exits by itself on errors of its own."""
    import hydra

    register_schema()
    sys.argv = ["python -m slurm_rl", *words]

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def application(config: object) -> None:
        raise AssertionError("only flags that print reach Hydra's main")

    application()
    return 0
