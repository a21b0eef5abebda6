"""`samples`: print what the policy wrote, turn by turn."""

from __future__ import annotations

from slurm_rl.cli.find import find_run
from slurm_rl.cli.told import show_plainly
from slurm_rl.cli.words import read_words
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.report.episodes import render_episodes
from slurm_rl.run_dir.jsonl import read_rows


def run(words: list[str]) -> int:
    told = read_words("samples", words)
    args, run_dir = told.flags, find_run(told.rest)
    rows = read_rows(run_dir.samples) if run_dir.samples.is_file() else []
    steps = sorted({row["step"] for row in rows if isinstance(row.get("step"), int)})
    if not steps:
        raise ConfigError(
            "a run has episodes once its first step was logged",
            seen=f"none in {run_dir.samples}",
            action="wait for a step, or look why there are none: logging.samples_per_step, python -m slurm_rl logs",
        )
    step = steps[-1] if args.step is None else args.step
    if step not in steps:
        raise ConfigError(
            "--step must be a step whose episodes were kept",
            seen=f"{step}",
            action=f"choose one from {steps[0]} to {steps[-1]}; logging.samples_per_step says how many are kept",
        )
    print(show_plainly(render_episodes([row for row in rows if row.get("step") == step])))
    return 0
