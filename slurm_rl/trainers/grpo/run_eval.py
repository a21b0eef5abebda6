"""Evaluation without training (`eval.only`): each set of `eval.sets` becomes a row of metrics.jsonl.

A later attempt measures only the missing sets.
"""

from collections.abc import Mapping

from slurm_rl.config.run import RunConfig
from slurm_rl.data.groups import Prompts
from slurm_rl.node.stop import Timer
from slurm_rl.run_dir.eval_sets import describe_result, read_results
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from slurm_rl.trainers.grpo.build import build_sets, open_journal, start_sampling, wait_for_engines
from slurm_rl.trainers.grpo.eval_sets import set_metrics
from slurm_rl.trainers.grpo.judges import Judge
from slurm_rl.trainers.grpo.rollout_files import log_samples
from slurm_rl.workers.ray_driver import Cluster

_STEP = 0


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
