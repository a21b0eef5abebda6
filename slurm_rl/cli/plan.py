"""`plan`: print a summary of the run, then the errors that `submit` would raise. Needs neither Slurm nor torch."""

import argparse
import json

from slurm_rl.cli.common import compose_run
from slurm_rl.cli.output import note
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_submission
from slurm_rl.launch.runs.interpreter import check_interpreter
from slurm_rl.launch.runs.model_shape import describe_prompts, find_shape, find_shape_at
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.rationale import explain_exactness
from slurm_rl.plan.render import render_plan


def run(args: argparse.Namespace) -> int:
    if args.system:
        return int(load_function("slurm_rl.plugins.export.command:run")(args))
    config, plan, directory = compose_run(args.rest, args.config_dir)
    print(_render(args, config, plan), flush=True)
    check_submission(config, plan, directory, note)
    try:
        check_interpreter(plan, note)
    except ConfigError as error:
        # A plan may be made on another machine than the one that submits.
        note(f"warning: submit will refuse this: {error}")
    return 0


def _render(args: argparse.Namespace, config: RunConfig, plan: JobPlan) -> str:
    """Return the plan as JSON, as a submission or as a summary."""
    if args.json:
        return json.dumps(plan.to_json(), indent=2)
    if args.script:
        text = render_plan(plan)
        if (exactness := explain_exactness(config)) is not None:
            line = f"exactness  {exactness[0]} ({exactness[1]})"
            text = text.replace("\n\nplacement\n", f"\n{line}\n\nplacement\n", 1)
        return text
    shape = None if config.external else find_shape(config.model)
    prompts = "" if config.external else describe_prompts(config)
    return render_explanation(config, plan, shape, find_shape_at(config.reference.path), prompts)
