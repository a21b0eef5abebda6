"""A teacher is killed during a run, in its own worker or in the policy's; real Ray, vLLM and torch."""

import os
import signal
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.train.test_engine_run import wait_for_phase
from tests.whole_run import exact_rows, find_processes, finish, start_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

WORDS = ("+algorithm=distill", "algorithm.kl.coef=1.0", "warmup.num_steps=0", "ray.dashboard=false")


@pytest.fixture(scope="module")
def teacher_overrides(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides of a policy that learns from another model with its tokenizer; both are random."""
    from tests.tiny_models import SMALL, build_tiny_model

    teacher = tmp_path_factory.mktemp("teacher") / "model"
    build_tiny_model(SMALL, 1, teacher)
    return (*WORDS, f"reference.path={teacher}", "job.max_failures=1")


@pytest.fixture(scope="module")
def undisturbed(teacher_overrides: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("taught") / "run"
    finish(start_run(run_dir, *teacher_overrides, "reference.num_workers=1"))
    return run_dir


@pytest.mark.parametrize(
    ("words", "holder"),
    [(("reference.num_workers=1",), "reference-0"), ((), "policy-0")],
    ids=["apart", "beside-the-policy"],
)
def test_killed_teacher_costs_one_attempt_and_keeps_metrics(
    words: tuple[str, ...], holder: str, teacher_overrides: tuple[str, ...], undisturbed: Path, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    process = start_run(run.path, *teacher_overrides, *words)
    os.kill(wait_for_phase(run, process, holder, "reference_logprobs"), signal.SIGKILL)
    finish(process)
    assert run.attempt_numbers() == [1, 2] and not find_processes(run.path)
    end = read_json(run.attempt(1).end)
    assert end["outcome"] == "failed" and f"{holder} must live through reference logprobs" in end["cause"], end
    rows = exact_rows(run.path)
    assert all(row["kl/reference"] for row in rows if row["stage"] == "grpo"), (
        "a teacher like the policy proves nothing"
    )
    assert rows == exact_rows(undisturbed)
