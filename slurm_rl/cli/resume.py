"""`resume`: submit the same plan again, with a new time limit if given; the trainer resumes from the newest
checkpoint."""

import argparse

from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.foreground import announce_and_follow
from slurm_rl.cli.output import note
from slurm_rl.cli.parser import parse
from slurm_rl.cli.pipeline import start_stages
from slurm_rl.data.load_data import accept_new_rows
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.launch.jobs import held_to_resume
from slurm_rl.launch.runs.find import load_plan
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.runs.start import resume_run

_LIMIT = "job.time_limit="


def run(args: argparse.Namespace) -> int:
    limits = [word for word in args.rest if word.startswith(_LIMIT)]
    path = find_target([word for word in args.rest if word not in limits])
    stages = find_stages(path)
    if limits and (stages or len(limits) > 1):
        raise ConfigError(
            f"{_LIMIT}... can be given once, for a single run", seen=" ".join(args.rest), action="leave it out"
        )
    if stages:
        return start_stages([require_own_run(stage) for stage in stages])
    directory = require_own_run(open_target(path))
    if args.accept_new_rows:
        with held_to_resume(directory):
            accept_new_rows(directory)
    if load_plan(directory).launcher_entry.by_node:
        if limits:
            raise ConfigError("nodes that join a run know no time limit", seen=limits[0], action="leave it out")
        from slurm_rl.cli.join import run as join

        return join(parse("join", ["--run", str(directory.path)]))
    started = resume_run(directory, note, limits[0].removeprefix(_LIMIT) if limits else None)
    note(f"resumed with the same plan{f', {limits[0]},' if limits else ''} and code: {directory.plan}")
    return announce_and_follow(started)
