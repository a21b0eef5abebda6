"""eval.on_checkpoint of a real run: the jobs' results are in the run's curves."""

from pathlib import Path

import pytest

from slurm_rl.plugins.report.summary import summarize_run
from slurm_rl.run_dir.eval_sets import list_evals, read_metrics, read_results
from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitting import run_cli, wait_for_end
from tests.whole_run import events_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1200)]

SMALL = (
    *("+exp=demo", "+cluster=slurm_cpu", "cluster.num_nodes=1", "ray.dashboard=false", "logging.wandb.mode=disabled"),
    *("warmup.num_steps=4", "warmup.batch_size=16", "trainer.num_steps=2", "trainer.prompts_per_step=4"),
    *(
        "cluster.internet=false",
        "data.num_eval=8",
        "checkpoint.interval=2",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=false",
    ),
)
EVALS = ("eval.on_checkpoint=true", "+eval.sets.sums.data=addition", "+eval.sets.sums.num_rows=8")


def test_checkpoints_are_evaluated_by_jobs(cluster: Cluster, shared_dir: Path) -> None:
    words = [*SMALL, *EVALS, "eval.job.partition=high", "eval.job.time_limit=20", f"run_dir={shared_dir}/run"]
    run_cli(cluster, shared_dir, *words)
    run = RunDir(shared_dir / "run")
    end = wait_for_end(run.path, timeout_s=600)
    assert end["state"] == "finished", end
    evals = list_evals(run)
    assert max(evals) == 6 and len(events_of(run.path, "eval/submitted")) == len(evals)
    wait_until(lambda: all(one.end.is_file() for one in evals.values()), "all evaluations", timeout_s=600)
    assert {read_json(one.end)["state"] for one in evals.values()} == {"finished"}
    assert all(read_json(one.plan)["sbatch"]["partition"] == "high" for one in evals.values())
    assert not any(one.evaluated.exists() for one in evals.values())
    assert [result["step"] for result in read_results(read_metrics(run))["sums"]] == sorted(evals)
    assert not any("set/sums" in key for row in events_of(run.path, "eval/done") for key in row)
    shown = run_cli(cluster, shared_dir, "status", "run").stdout
    assert f"evals   {len(evals)} finished" in shown and "(step 6)" in shown
    assert summarize_run(run)["sets"]["sums"]["after"]["step"] == 6
    wait_until(lambda: "sums" in run.report.read_text(), "the report with the last evaluation", timeout_s=60)
