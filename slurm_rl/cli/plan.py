"""`plan`: what submit would send, printed and not sent, then what it would refuse. Needs neither Slurm nor torch."""

from __future__ import annotations

import json

from slurm_rl.cli.checks import check_submission
from slurm_rl.cli.common import compose_run
from slurm_rl.cli.words import read_words
from slurm_rl.plan.render import render_plan


def run(words: list[str]) -> int:
    told = read_words("plan", words)
    config, plan, directory = compose_run(told.rest, told.flags.config_dir)
    print(json.dumps(plan.to_json(), indent=2) if told.flags.json else render_plan(plan), flush=True)
    check_submission(config, plan, directory)
    return 0
