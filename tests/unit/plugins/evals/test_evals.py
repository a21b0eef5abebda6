"""One evaluation job per checkpoint; sbatch and squeue are fakes (tests/slurm/test_evals.py has a real Slurm)."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.cli.status import render_status
from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, SubmitError, UnknownJobError
from slurm_rl.launch import jobs
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.controller.record import record_job
from slurm_rl.launch.protocol import Submitted
from slurm_rl.launch.runs.start import plan_in
from slurm_rl.launch.slurm import commands
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.evals.config import build_eval_config
from slurm_rl.plugins.evals.submit import find_missing, submit_missing
from slurm_rl.run_dir.eval_sets import list_evals, read_metrics
from slurm_rl.run_dir.jsonl import append_row, read_rows
from slurm_rl.run_dir.run_dir import RunDir, read_json

WORDS = (
    *("+exp=demo", "+cluster=slurm_cpu", "eval.on_checkpoint=true", "+eval.sets.sums.data=addition"),
    *("eval.job.partition=small", "eval.job.time_limit=30", "job.time_limit=1-00:00:00"),
)


class Slurm:
    """Fake of sbatch and squeue."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.submitted: list[Path] = []
        self.queued: dict[str, str] = {}

    def submit(self, run: RunDir, plan: JobPlan) -> Submitted:
        self.submitted.append(run.path)
        if self.error is not None:
            raise self.error
        record_job(run, "slurm", job_id := str(len(self.submitted)))
        return Submitted(job_id)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(jobs, "submit_run", slurm.submit)
    monkeypatch.setattr(commands, "find_by_script", lambda path: slurm.queued)
    return slurm


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    config = load_config([*WORDS, f"run_dir={run.path}"])
    create_run(run, config, plan_in(config, run))
    run.model.mkdir()
    return run


def save(run: RunDir, step: int) -> None:
    policy = run.checkpoints / f"step-{step}" / "policy"
    policy.mkdir(parents=True)
    (policy / "layout.json").write_text("{}")


def test_eval_job_has_own_limits_and_sets_of_run(run: RunDir) -> None:
    source = load_config([*WORDS, "cluster.num_nodes=4", "job.num_spare_nodes=1"])
    config = build_eval_config(source, run, 20)
    assert (config.cluster.slurm.partition, config.job.time_limit, config.cluster.num_nodes) == ("small", "30", 1)
    assert config.eval.only and list(config.eval.sets) == ["sums"] and config.reward == source.reward
    assert (config.job.num_spare_nodes, config.run_dir) == (0, str(run.evals / "step-20"))
    sbatch = plan_in(config, RunDir(run.evals / "step-20")).sbatch
    assert (sbatch["partition"], sbatch["time"], sbatch["job-name"]) == ("small", 30, "addition-step-20")


def test_checkpoint_gets_one_job_and_may_be_pruned(run: RunDir, slurm: Slurm) -> None:
    for step in (10, 20):
        save(run, step)
    submit_missing(run)
    assert slurm.submitted == [run.evals / "step-10", run.evals / "step-20"] and find_missing(run) == []
    shutil.rmtree(run.checkpoints / "step-10")
    submit_missing(run)
    assert len(slurm.submitted) == 2
    target = list_evals(run)[10]
    assert (target.evaluated / "layout.json").is_file()
    assert ModelConfig.model_validate(read_json(target.evaluated / "model.json")).path == str(target.evaluated / "base")
    assert read_json(target.plan)["sbatch"]["partition"] == "small"


def test_unanswered_submission_is_found_by_script(run: RunDir, slurm: Slurm) -> None:
    save(run, 10)
    slurm.error = UnknownJobError("sbatch did not answer in time")
    submit_missing(run)
    assert find_missing(run) == [10]
    slurm.error, slurm.queued = None, {"77": "PENDING"}
    submit_missing(run)
    assert len(slurm.submitted) == 1 and read_json(list_evals(run)[10].job)["job_id"] == "77"


@pytest.mark.parametrize("fault", ["refused", "pruned"])
def test_failed_submission_is_shown_and_not_repeated(run: RunDir, slurm: Slurm, fault: str) -> None:
    save(run, 10)
    if fault == "refused":
        slurm.error = SubmitError("Slurm must accept sbatch", seen="invalid partition specified: small")
    else:
        shutil.rmtree(run.checkpoints / "step-10" / "policy")
    submit_missing(run)
    assert find_missing(run) == []
    shown = render_status(run)
    assert "evals   1 failed" in shown and "eval    step 10 failed: not submitted: " in shown
    assert ("small" if fault == "refused" else "No such file") in shown


def test_results_are_at_steps_of_checkpoints(run: RunDir, slurm: Slurm) -> None:
    save(run, 10)
    submit_missing(run)
    for step in (5, 15):
        append_row(run.metrics, {"step": step, "stage": "grpo"})
    result = {"set/sums/avg@1": 0.5, "set/sums/prompts": 8.0}
    append_row(list_evals(run)[10].metrics, {"step": 0, "stage": "eval", **result})
    assert [row["step"] for row in read_metrics(run)] == [5, 10, 15]
    assert read_metrics(run)[1]["set/sums/avg@1"] == 0.5
    assert "set     sums: avg@1 0.500, 8 prompts, 0 failed (step 10)" in render_status(run)
    assert [row["kind"] for row in read_rows(run.events)] == ["eval/submitted"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["+cluster=slurm_cpu", "eval.job.num_nodes=2"], "eval.job is for eval.on_checkpoint=true"),
        (["+cluster=slurm_cpu", "eval.on_checkpoint=true"], "evaluates the eval.sets of a training run"),
        (["eval.on_checkpoint=true", "+eval.sets.sums.data=addition"], "it needs a queue; got cluster.launcher=local"),
        (["+exp=sft_tiny", "eval.on_checkpoint=true"], "eval"),
    ],
)
def test_impossible_evaluations_are_refused(words: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule.replace(".", r"\.")):
        load_config(["+exp=demo", *words] if "+exp=sft_tiny" not in words else words)


def test_impossible_eval_job_is_refused_before_training(tmp_path: Path, monkeypatch: Any) -> None:
    from slurm_rl.plugins.evals.check import check_eval_job

    config: RunConfig = load_config([*WORDS, "eval.job.gpus_per_node=2"])
    with pytest.raises(ConfigError, match=r"the jobs of eval\.on_checkpoint must be possible"):
        check_eval_job(config, RunDir(tmp_path))
    check_eval_job(load_config([*WORDS]), RunDir(tmp_path))
