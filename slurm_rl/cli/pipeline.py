"""`submit FILE`: run the stages of one file in order, each after the previous one has finished.

With a queue all of them are submitted at once and wait there; on this machine each is followed to its end.
"""

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_rl.cli.common import check_overrides
from slurm_rl.cli.foreground import follow_to_the_end
from slurm_rl.cli.output import note
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.record import has_finished, load_job
from slurm_rl.launch.jobs import cancel_runs, read_states, submit_run
from slurm_rl.launch.runs.find import load_plan, parse_path, remember
from slurm_rl.launch.runs.pipeline import PIPELINE_FILE, parse_stages, place_stages
from slurm_rl.launch.runs.start import create_stages, resume_run
from slurm_rl.run_dir.run_dir import RunDir, write_text


def run_pipeline(args: argparse.Namespace) -> int:
    file, more = parse_path(args.rest[0]), args.rest[1:]
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the pipeline file must be readable ({error})", seen=str(file)) from None
    folder = (args.dir or Path("runs") / f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if folder.exists() and any(folder.iterdir()):
        action = f"resume it: python -m slurm_rl resume {shlex.quote(str(folder))}, or choose another --dir"
        raise ConfigError("--dir must be a new or empty folder", seen=str(folder), action=action)
    placed = place_stages(parse_stages(text, str(file)), folder, check_overrides(more) if more else [])
    configs = [load_config(check_overrides(each), config_dir=args.config_dir) for each in placed]
    runs = create_stages(configs, note)
    write_text(folder / PIPELINE_FILE, text)
    remember(folder, [])
    quoted = shlex.quote(str(folder))
    note(f"pipeline  {folder}\nstatus    python -m slurm_rl status {quoted}")
    return start_stages(runs)


def start_stages(runs: Sequence[RunDir]) -> int:
    """Start or resume every stage that is neither finished nor running. Return at once with a queue, else at the end.

    Raises:
        SlurmRLError: a stage is refused; the stages before it are submitted.
    """
    is_moved = False
    for run in runs:
        if has_finished(run):
            continue
        [state] = read_states([run])
        if state.is_alive and not is_moved:
            note(f"stage     {run.path.name} is {state}")
            continue
        if state.is_alive:
            cancel_runs([run])  # it waits for an old job of the previous stage
        started = resume_run(run, note).submitted if load_job(run) else submit_run(run, load_plan(run))
        is_moved = True
        note(f"stage     {run.path.name}, job {started.job_id}")
        if started.process is not None and (code := follow_to_the_end(run, started.process)):
            path = shlex.quote(str(run.path.parent))
            note(f"stage {run.path.name} has not finished, so those after it wait: python -m slurm_rl resume {path}")
            return code
    return 0
