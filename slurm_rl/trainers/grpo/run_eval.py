"""Evaluation without training (`eval.only`): each set of `eval.sets` becomes a row of metrics.jsonl.

A later attempt measures only the missing sets.
"""

import shutil
from collections.abc import Mapping

from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.data.groups import Prompts
from slurm_rl.node.stop import Timer
from slurm_rl.run_dir.eval_sets import describe_result, read_results
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.grpo.build import build_sets, open_journal, start_sampling, wait_for_engines
from slurm_rl.trainers.grpo.eval_sets import set_metrics
from slurm_rl.trainers.grpo.judges import Judge
from slurm_rl.trainers.grpo.rollout_files import log_samples
from slurm_rl.workers.ray_driver import Cluster

_STEP = 0
_MODEL = "model.json"
"""Model section of the run that trained the checkpoint; see plugins/evals/submit.py."""
_SHARD_BYTES = 5_000_000_000


def convert_evaluated(run: RunDir) -> None:
    """Write the model of a checkpoint that eval.on_checkpoint linked into this run; nothing for other runs."""
    if not (run.evaluated / _MODEL).is_file():
        return
    from slurm_rl.models.convert import convert_checkpoint

    model = ModelConfig.model_validate(read_json(run.evaluated / _MODEL))
    if not (run.model / "config.json").is_file():
        assert model.path is not None, "submit.py names a folder"
        convert_checkpoint(run.evaluated, model.path, model, run.model, _SHARD_BYTES, check_logits=False)
    shutil.rmtree(run.evaluated)


def evaluate_alone(
    run: RunDir,
    config: RunConfig,
    cluster: Cluster,
    model_path: str,
    prompts: Prompts,
    judges: Mapping[str, Judge],
    metrics: MetricsLogger,
    attempt: AttemptDir,
) -> None:
    """Measure the sets that no earlier attempt has measured.

    Raises:
        StopRequested: at a stop signal; finished sets are kept.
    """
    engines, supervisor, sampler = start_sampling(run, attempt, config, cluster, model_path, prompts)
    wait_for_engines(cluster, engines, config, run)
    cluster.while_waiting = supervisor.check
    measured = read_rows(run.metrics) if run.metrics.is_file() else []
    metrics.rewind(_STEP if measured else -1, len(measured))
    journal = open_journal(run, config, judges)
    for one in build_sets(config, prompts, sampler, judges, None, model_path, journal):
        if any(key.startswith(f"set/{one.name}/") for row in measured for key in row):
            continue
        append_event(run, "eval/started", set=one.name, prompts=len(one.prompts), samples=one.num_samples)
        timer = Timer()
        with timer.phase("eval"):
            groups = one.sample(_STEP)
            found = set_metrics(one.name, groups)
        metrics.log(_STEP, "eval", {**found, **timer.seconds})
        log_samples(run, _STEP, groups[: config.logging.samples_per_step], of_set=one.name)
        [result] = read_results([{"step": _STEP, **found}])[one.name]
        append_event(run, "eval/done", step=_STEP, set=one.name, result=describe_result(result))
