"""`plan`: print a summary of the run, then that it is valid, or the errors that `submit` would raise.

It needs neither Slurm nor torch.
"""

import argparse
import json

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.output import note
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.create import check_judge_keys
from slurm_rl.launch.runs.checks import check_submission
from slurm_rl.launch.runs.interpreter import check_interpreter
from slurm_rl.launch.runs.model_shape import describe_prompts, find_shape, find_shape_at
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.render import render_plan


def run(args: argparse.Namespace) -> int:
    if args.system:
        return int(load_function("slurm_rl.plugins.export.command:run")(args))
    config, plan, directory = compose_run(args.rest, args.config_dir)
    print(_render(args, config, plan), flush=True)
    check_submission(config, plan, directory, note)
    verdict = "valid, not submitted"
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


def _render(args: argparse.Namespace, config: RunConfig, plan: JobPlan) -> str:
    """Return the plan as JSON, or as a summary, with --full followed by the submission."""
    if args.json:
        return json.dumps(plan.to_json(), indent=2)
    shape = None if config.external else find_shape(config.model)
    prompts = "" if config.external else describe_prompts(config)
    summary = render_explanation(config, plan, shape, find_shape_at(config.reference.path), prompts)
    return f"{summary}\n\n{render_plan(plan)}\n" if args.full else summary
