"""`plan`: print a summary of the run, then that it is valid, or the errors that `submit` would raise.

It needs neither Slurm nor torch. Where Slurm answers, it also judges the job, of which nothing is queued.
"""

import argparse
import json

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.output import note
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import check_judge_keys
from slurm_rl.launch.jobs import open_launcher
from slurm_rl.launch.runs.checks import check_submission
from slurm_rl.launch.runs.interpreter import check_interpreter
from slurm_rl.launch.runs.model_shape import describe_prompts, find_shape
from slurm_rl.launch.slurm.command_line import NoSlurmError, SlurmUnavailableError
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.render import render_plan


def run(args: argparse.Namespace) -> int:
    if args.system:
        return int(load_function("slurm_rl.plugins.export.command:run")(args))
    config, plan, directory = compose_run(args.rest, args.config_dir)
    print(_render(args, config, plan), flush=True)
    check_submission(config, plan, directory, note)
    verdict = "valid, not submitted" if _ask_queue(plan) else "valid, not submitted, not checked by Slurm"
    # A plan may be made on another machine, or in another environment, than the one that submits.
    for check in (lambda: check_interpreter(plan, note), lambda: check_judge_keys(config)):
        try:
            check()
        except ConfigError as error:
            note(f"warning: submit will refuse this: {error}")
            verdict = "valid except for this machine's Python or environment (see the warning), not submitted"
    if not args.json:
        print(verdict)
    return 0


def _ask_queue(plan: JobPlan) -> bool:
    """Let the scheduler judge the plan, as `submit` does; return False if it cannot be asked here."""
    if not plan.launcher_entry.is_queue:
        return True
    try:
        _, notes = open_launcher(plan.launcher).check(plan)
    except (NoSlurmError, SlurmUnavailableError) as error:
        note(f"unchecked: partition, account and limits: {error}")
        return False
    for line in notes:
        note(line)
    return True


def _render(args: argparse.Namespace, config: RunConfig, plan: JobPlan) -> str:
    """Return the plan as JSON, or as a summary, with --full followed by the submission."""
    if args.json:
        return json.dumps(plan.to_json(), indent=2)
    shape = None if config.external else find_shape(config.model)
    prompts = "" if config.external else describe_prompts(config)
    summary = render_explanation(config, plan, shape, prompts)
    return f"{summary}\n\n{render_plan(plan)}\n" if args.full else summary
