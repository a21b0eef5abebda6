"""`submit`: check, write the run directory, start the job, and in the foreground follow it."""

from __future__ import annotations

import sys

from slurm_rl.cli.announce import announce_and_follow
from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.told import tell
from slurm_rl.cli.words import Words, read_words
from slurm_rl.config.load import compose, conf_dir, load_config, register_schema, render_search_path, site_dirs
from slurm_rl.config.overrides import normalise_words
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.start import start_run

_SHOWING = ("cfg", "info", "package", "hydra_help")


def run(words: list[str]) -> int:
    told = read_words("submit", words)
    flags = told.flags
    if told.rest and told.rest[0].endswith((".yaml", ".yml")) and "=" not in told.rest[0]:
        from slurm_rl.cli.pipeline import run_pipeline

        if flags.multirun or any(getattr(flags, name) for name in _SHOWING):
            raise ConfigError("a pipeline file takes only --dir and --config-dir", seen=" ".join(words))
        return run_pipeline(told)
    if flags.dir is not None:
        raise ConfigError("--dir is for a pipeline file", seen=str(flags.dir), action="set run_dir= instead")
    if any(getattr(flags, name) for name in _SHOWING):
        return _run_hydra(told)
    if flags.multirun:
        from slurm_rl.cli.sweep import run_sweep

        return run_sweep(told)
    return _submit(told)


def _run_hydra(told: Words) -> int:
    """Hand the words to Hydra's own main, which prints; what would not compose is told in our words first.

    Raises:
        ConfigError: the overrides do not compose.
    """
    import hydra

    register_schema()
    if told.flags.cfg or told.flags.info:
        compose(check_overrides(told.rest), config_dir=told.flags.config_dir)
    # Hydra's own --config-dir would read YAML 1.1.
    named = {name: getattr(told.flags, name) for name in ("cfg", "info", "package")}
    flags = [f"--{name}={value}" for name, value in named.items() if value]
    flags += ["--hydra-help"] if told.flags.hydra_help else []
    flags += ["--multirun"] if told.flags.multirun else []
    search_path = render_search_path(site_dirs(told.flags.config_dir))
    sys.argv = ["python -m slurm_rl", *flags, *normalise_words(told.rest), *search_path]

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def application(config: object) -> None:
        raise AssertionError("only flags that print reach Hydra's main")

    try:
        application()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2 if end.code else 0
    return 0


def _submit(told: Words) -> int:
    config = load_config(check_overrides(told.rest), config_dir=told.flags.config_dir)
    return announce_and_follow(start_run(config, tell))
