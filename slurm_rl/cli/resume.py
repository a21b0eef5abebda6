"""`resume`: submit the same plan again; the trainer resumes from the newest checkpoint."""

import argparse

from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.foreground import announce_and_follow
from slurm_rl.cli.output import note
from slurm_rl.cli.parser import parse
from slurm_rl.cli.pipeline import start_stages
from slurm_rl.data.load_data import accept_new_rows
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.launch.jobs import held_to_resume
from slurm_rl.launch.runs.find import load_plan
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.runs.start import resume_run


def run(args: argparse.Namespace) -> int:
    path = find_target(args.rest)
    if stages := find_stages(path):
        return start_stages([require_own_run(stage) for stage in stages])
    directory = require_own_run(open_target(path))
    if args.accept_new_rows:
        with held_to_resume(directory):
            accept_new_rows(directory)
    if load_plan(directory).launcher_entry.by_node:
        from slurm_rl.cli.join import run as join

        return join(parse("join", ["--run", str(directory.path)]))
    started = resume_run(directory, note)
    note(f"resumed with the same plan and code: {directory.plan}")
    return announce_and_follow(started)
