"""`resume`: submit the same plan again; the trainer resumes from the newest checkpoint."""

from __future__ import annotations

import sys

from slurm_rl.cli.find import find_run, load_plan
from slurm_rl.cli.submit import announce_and_follow, ask_cluster
from slurm_rl.cli.words import read_words
from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.image.files import check_image_is_there
from slurm_rl.job.create import require_own_run
from slurm_rl.launchers.jobs import held_to_resume, submit_run


def run(words: list[str]) -> int:
    directory = require_own_run(find_run(read_words("resume", words).rest))
    plan = load_plan(directory)
    if LAUNCHERS[plan.launcher].by_node:
        from slurm_rl.cli.node import run as run_node

        # The head looks whether the run is over; the other machines may come when it goes on already.
        return run_node(["--run", str(directory.path)])
    with held_to_resume(directory):
        check_image_is_there(plan)
        plan = ask_cluster(plan)
        print(f"resuming with the same plan and code: {directory.plan}", file=sys.stderr)
        submitted = submit_run(directory, plan)
    return announce_and_follow(directory, plan, submitted)
