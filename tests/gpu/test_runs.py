"""Complete runs on GPUs with the shipped presets. Each weight sync verifies the engine's logprobs and every weight."""

import json
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.gpu.cases import CASES
from tests.gpu.conftest import Note
from tests.gpu.kit import case_overrides, need, peak_memory, train, train_case
from tests.whole_run import finish, kill_trainer, stage_rows, start_run


@pytest.mark.parametrize("name", CASES)
def test_run_finishes(name: str, tmp_path: Path, num_gpus: int, note: Note) -> None:
    need(CASES[name].num_gpus, num_gpus)
    steps = train_case(name, tmp_path)
    assert len(steps) >= 3
    # The tiny model's answers to images are all wrong.
    assert CASES[name].model is None or all(row["policy/grad_norm"] > 0 for row in steps)
    for key in ("mismatch/mean", "mismatch/kl", "sync/probe_difference"):
        if key in steps[-1]:
            note(**{key: max(float(row[key]) for row in steps)})


@pytest.mark.parametrize(("name", "captures"), [("grpo, colocated", True), ("grpo, colocated, eager", False)])
def test_engines_capture_graphs_unless_disabled(name: str, captures: bool, tmp_path: Path) -> None:
    handler = {"class": "logging.FileHandler", "filename": str(tmp_path / "vllm.log"), "level": "INFO"}
    loggers = {"vllm": {"handlers": ["file"], "level": "INFO"}}
    config = {"version": 1, "handlers": {"file": handler}, "loggers": loggers, "disable_existing_loggers": False}
    (tmp_path / "logging.json").write_text(json.dumps(config))
    words = [*case_overrides(CASES[name], tmp_path), f"+cluster.env.VLLM_LOGGING_CONFIG_PATH={tmp_path}/logging.json"]
    train(tmp_path / "run", words)
    assert ("Graph capturing finished" in (tmp_path / "vllm.log").read_text()) == captures


def test_same_seed_samples_and_scores_same_first_step(tmp_path: Path, note: Note) -> None:
    words = case_overrides(CASES["grpo, colocated"], tmp_path)
    one, other = ([row for row in train(tmp_path / name, words) if row["stage"] == "grpo"] for name in ("a", "b"))
    sampled = [key for key in one[0] if key.startswith(("reward/", "completion/", "tokens/"))]
    assert sampled and {key: one[0][key] for key in sampled} == {key: other[0][key] for key in sampled}
    # Kernels that sum in any order may change the last digit of later steps.
    note(equal_steps=sum(a == b for a, b in zip(one, other, strict=True)), of=len(one))


def test_run_killed_with_sigkill_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*case_overrides(CASES["grpo, colocated"], tmp_path), "trainer.num_steps=5", "job.max_failures=0"]
    process = start_run(run, base=words)
    kill_trainer(RunDir(run), process, step=2)
    assert process.wait(600) != 0
    finish(start_run(run, verb="resume"), timeout_s=1800)
    assert [row["step"] for row in stage_rows(run)] == [1, 2, 3, 4, 5]


def test_mask_of_one_gpu_leaves_other_free(
    tmp_path: Path, num_gpus: int, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(2, num_gpus)
    words = case_overrides(CASES["grpo, colocated"], tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with peak_memory() as most:
        before = most[0]
        train(tmp_path / "run", words)
    note(masked_gb=(most[0] - before) / 1e9, used_gb=most[1] / 1e9)
    assert most[0] - before < 1e8 < most[1]


def test_colocated_memory_matches_plan(tmp_path: Path, note: Note) -> None:
    """1.5 billion parameters at the planner's sizes: peak memory of the whole GPU."""
    words = case_overrides(CASES["grpo, colocated, 1.5b"], tmp_path)
    with peak_memory() as most:
        train(tmp_path / "run", words)
    layout = read_json(RunDir(tmp_path / "run").plan)["layout"]
    note(most_gb=max(most) / 1e9, gpu_gb=layout["gpu_mem_gb"], engine_budget_gb=layout["engine_budget_gb"])
    assert max(most) / 1e9 <= layout["gpu_mem_gb"]
