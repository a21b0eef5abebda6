"""`plan`: what submit would send, printed and not sent. Needs neither Slurm nor torch."""

from __future__ import annotations

import json

from slurm_rl.cli.common import compose_run
from slurm_rl.plan.render import render_plan


def run(words: list[str]) -> int:
    as_json = "--json" in words
    _, plan, _ = compose_run([word for word in words if word != "--json"])
    print(json.dumps(plan.to_json(), indent=2) if as_json else render_plan(plan))
    return 0
