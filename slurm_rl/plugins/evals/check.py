"""Check the evaluation jobs of a run before it is submitted."""

from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.start import plan_in
from slurm_rl.plugins.evals.config import build_eval_config
from slurm_rl.run_dir.run_dir import RunDir


def check_eval_job(config: RunConfig, run: RunDir) -> None:
    """Raise ConfigError if the evaluation of a checkpoint could not be planned."""
    try:
        own = build_eval_config(config, run, 0)
        plan_in(own.model_copy(update={"model": config.model}), RunDir(run.evals / "step-0"))
    except ConfigError as error:
        raise ConfigError(f"the jobs of eval.on_checkpoint must be possible: {error}") from None
