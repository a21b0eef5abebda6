"""`explain`: a run in one screen, for people; what would be sent is for `plan`. Needs neither Slurm nor torch."""

from __future__ import annotations

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.words import read_words
from slurm_rl.launch.runs.chat import describe_prompts
from slurm_rl.launch.runs.model_shape import find_shape, find_shape_at
from slurm_rl.plan.explain import render_explanation


def run(words: list[str]) -> int:
    told = read_words("explain", words)
    config, plan, _ = compose_run(told.rest, told.flags.config_dir)
    shape = None if config.external else find_shape(config.model)
    prompts = "" if config.external else describe_prompts(config)
    print(render_explanation(config, plan, shape, find_shape_at(config.reference.path), prompts))
    return 0
