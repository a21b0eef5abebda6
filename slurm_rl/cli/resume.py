"""`resume`: submit the same plan again; the trainer resumes from the newest checkpoint."""

from __future__ import annotations

from slurm_rl.cli.announce import announce_and_follow
from slurm_rl.cli.find import find_target, open_target
from slurm_rl.cli.pipeline import start_stages
from slurm_rl.cli.told import tell
from slurm_rl.cli.words import read_words
from slurm_rl.config.launchers import LAUNCHERS
from slurm_rl.data.load_data import accept_new_rows
from slurm_rl.launch.controller.create import require_own_run
from slurm_rl.launch.jobs import held_to_resume
from slurm_rl.launch.runs.find import load_plan
from slurm_rl.launch.runs.pipeline import find_stages
from slurm_rl.launch.runs.start import resume_run


def run(words: list[str]) -> int:
    read = read_words("resume", words)
    path = find_target(read.rest)
    if stages := find_stages(path):
        return start_stages([require_own_run(stage) for stage in stages])
    directory = require_own_run(open_target(path))
    if read.flags.accept_new_rows:
        with held_to_resume(directory):
            accept_new_rows(directory)
    if LAUNCHERS[load_plan(directory).launcher].by_node:
        from slurm_rl.cli.join import run as run_node

        # The head looks whether the run is over; the other machines may come when it goes on already.
        return run_node(["--run", str(directory.path)])
    started = resume_run(directory, tell)
    tell(f"resumed with the same plan and code: {directory.plan}")
    return announce_and_follow(started)
