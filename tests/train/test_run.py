"""The demo's pipeline end to end, also killed, with real Ray, vLLM and torch on CPU."""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.node.private_folder import tmp_stem
from slurm_rl.node.processes import find_marked
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import read_json
from tests.docs.metrics_page import find_unexplained
from tests.ray_kit import ray_up
from tests.whole_run import (
    OVERRIDES,
    command_line,
    exact_rows,
    find_driver,
    find_processes,
    finish,
    start_run,
    wait_for,
)


def test_run_writes_promised_files(whole_run: Path) -> None:
    summary = json.loads((whole_run / "summary.json").read_text())
    assert set(summary["accuracy"]["before"]) >= {"sampled", "greedy"}
    assert set(summary["accuracy"]["after"]) >= {"sampled", "greedy"}
    assert summary["tokens_per_s"] > 0
    assert summary["wall_s"] > 0
    report = (whole_run / "report.html").read_text()
    assert "<svg" in report
    assert not re.search(r'(src|href)="https?:', report)
    assert list((whole_run / "tensorboard").iterdir())
    assert json.loads((whole_run / "end.json").read_text())["state"] == "finished"


def test_engine_and_policy_agree_after_every_sync(whole_run: Path) -> None:
    steps = [row for row in exact_rows(whole_run) if row["stage"] == "grpo"]
    assert len(steps) == 6
    assert any(row["policy/grad_norm"] > 0 for row in steps), "nothing was learned, so nothing was synced"
    # Includes the tied output layer: stale, it differs by more than 1.
    assert max(row["sync/probe_difference"] for row in steps) < 1e-4
    assert max(row["mismatch/mean"] for row in steps) < 1e-4


def test_metrics_page_names_keys_of_row(whole_run: Path) -> None:
    rows = [json.loads(line) for line in (whole_run / "metrics.jsonl").read_text().splitlines()]
    assert {row["stage"] for row in rows} == {"warmup", "eval", "grpo"}
    assert find_unexplained({key for row in rows for key in row}) == set()


def test_exported_model_equals_trained_one(whole_run: Path) -> None:
    from safetensors.torch import load_file

    before = load_file(whole_run / "model" / "model.safetensors")
    after = load_file(whole_run / "export" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before)


def test_converted_checkpoint_equals_export(whole_run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    out = tmp_path / "model"
    words = ["convert", str(whole_run), "--out", str(out), "--max-shard-gb", "0.0001"]
    assert main(words) == 0
    exported = load_file(whole_run / "export" / "model.safetensors")
    shards = sorted(out.glob("model-*.safetensors"))
    assert len(shards) > 1
    found = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    assert found.keys() == exported.keys()
    assert all((found[name] == exported[name]).all() for name in found)
    model, loaded = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not loaded["missing_keys"] and not loaded["unexpected_keys"]
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_convert_names_missing_parts(whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(whole_run), "--step", "7"]) != 0
    assert "step-7" in capsys.readouterr().err
    assert main(["convert", str(whole_run), "--out", str(tmp_path)]) == 2
    assert "new folder" in capsys.readouterr().err


def test_run_leaves_no_process_or_file(whole_run: Path) -> None:
    assert not find_processes(whole_run)
    assert find_temp_dirs(whole_run) == []
    assert not list((whole_run / "secrets").iterdir())


@pytest.fixture
def other_ray() -> Iterator[set[int]]:
    """Processes of another Ray cluster of the same user on this machine."""
    with ray_up() as cluster:
        is_core = re.compile(r"/ray/core/src/.*(gcs_server|raylet)\b")
        core = {pid for pid in find_marked(cluster.mark) if is_core.search(command_line(pid).partition(" ")[0])}
        assert len(core) == 2
        yield core


def test_killed_run_resumes_with_identical_metrics(whole_run: Path, tmp_path: Path) -> None:
    """SIGKILL the trainer in the middle of a step, after a save."""
    run_dir = tmp_path / "killed"
    # The undisturbed run has a dashboard, which takes a third of the CPU time of a bring-up.
    kill_driver_when(start_run(run_dir, "ray.dashboard=false"), run_dir, lambda: has_rows(run_dir, 43))
    assert json.loads((run_dir / "end.json").read_text())["state"] == "failed"
    finish(start_run(run_dir, verb="resume"))
    assert exact_rows(run_dir) == exact_rows(whole_run)
    assert not find_processes(run_dir)


@pytest.mark.slow
@pytest.mark.timeout(2400)  # 21 starts of Ray and an engine
def test_twenty_kills_in_saves_keep_metrics(whole_run: Path, tmp_path: Path, other_ray: set[int]) -> None:
    """Kill at random times during saves: every resume finds a checkpoint, and the metrics are identical.

    Another Ray cluster of this user survives; in `make test` two runs share a node in tests/slurm/test_faults.py.
    """
    chance, num_kills, num_runs = random.Random(0), 0, 0
    while num_kills < 20:
        run_dir, num_runs = tmp_path / f"run-{num_runs}", num_runs + 1
        process = start_run(run_dir, "checkpoint.interval=1")
        while num_kills < 20 and wait_for_save(process, run_dir):
            time.sleep(chance.uniform(0, 0.1))
            os.kill(find_driver(run_dir), signal.SIGKILL)
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 1, output
            num_kills += 1
            process = start_run(run_dir, verb="resume")
        finish(process)
        assert exact_rows(run_dir) == exact_rows(whole_run)
        assert "skipped" not in (run_dir / "events.jsonl").read_text()
    assert all(Path(f"/proc/{pid}").exists() for pid in other_ray)


@pytest.mark.slow
def test_killed_run_ahead_has_identical_metrics(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    words = ("rollout.max_off_policy_steps=2", "algorithm.correction.kind=token_tis", "eval.num_samples=4")
    finish(start_run(whole, *words))
    rows = [row for row in exact_rows(whole) if row["stage"] == "grpo"]
    # The first batches all use the first weights; later ones are two steps old.
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 2, 2, 2, 2]
    # Stale weights cause the mismatch: without them engine and policy agree to 1e-5.
    assert rows[0]["mismatch/max"] < 1e-4 < rows[-1]["mismatch/max"]
    kill_driver_when(start_run(killed, *words), killed, lambda: has_rows(killed, 44))
    finish(start_run(killed, verb="resume"))
    assert exact_rows(killed) == exact_rows(whole)


@pytest.mark.slow
def test_continuous_run_respects_staleness_bound(tmp_path: Path) -> None:
    """Killed and resumed. Its numbers depend on timing, so only the bound can be checked."""
    run_dir = tmp_path / "continuous"
    words = (
        "rollout.max_off_policy_steps=2",
        "rollout.inflight_weight_updates=true",
        "algorithm.correction.kind=token_tis",
    )
    kill_driver_when(start_run(run_dir, *words), run_dir, lambda: has_rows(run_dir, 44))
    finish(start_run(run_dir, verb="resume"))
    rows = [row for row in exact_rows(run_dir) if row["stage"] == "grpo"]
    assert len(rows) == 6
    assert all(0 <= row["rollout/staleness"] <= 2 and 0 <= row["rollout/mixed_weights"] <= 1 for row in rows)


def wait_for_save(process: subprocess.Popen[str], run_dir: Path) -> bool:
    """Wait until the trainer writes an unfinished checkpoint; return False if the run ends before."""
    before = set((run_dir / "checkpoints").glob(".step-*"))
    while process.poll() is None:
        if set((run_dir / "checkpoints").glob(".step-*.tmp*")) - before:
            return True
        time.sleep(0.001)
    return False


def find_temp_dirs(run_dir: Path) -> list[Path]:
    """Return the run's node-local folders only."""
    plan = JobPlan.from_json(read_json(run_dir / "plan.json"))
    return list(Path(plan.tmp_root).glob(f"{tmp_stem(plan)}*"))


def kill_driver_when(process: subprocess.Popen[str], run_dir: Path, is_time: Callable[[], bool]) -> None:
    """SIGKILL the trainer when `is_time`; the command must then exit with status 1."""
    wait_for(is_time, "the moment to kill never came", process, pause_s=0.002)
    os.kill(find_driver(run_dir), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "killed by SIGKILL" in output


def has_rows(run_dir: Path, count: int) -> bool:
    path = run_dir / "metrics.jsonl"
    return path.is_file() and path.read_bytes().count(b"\n") >= count


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["optim.lrr=1"], ["optim.lrr", "optim.lr"]),
        (["optim.lr=abc"], ["optim.lr", "abc"]),
        (["algorithm.group_size=1"], ["algorithm.group_size", "8"]),
        (["trainer.num_minibatches=7"], ["trainer.prompts_per_step", "7"]),
        (["data.max_prompt_tokens=100"], ["data.max_prompt_tokens", "64"]),
        (["algorithm.loss=ppo2"], ["algorithm.loss", "grpo"]),
        (["data.train=/nowhere/prompts.jsonl"], ["/nowhere/prompts.jsonl"]),
        (["model=nonesuch"], ["nonesuch", "tiny_qwen3"]),
        (["policy.backend=deepspeed", "policy.offload=all"], ["policy.offload=all", "policy.zero_stage=3"]),
        (["rollout.max_off_policy_steps=-1"], ["rollout.max_off_policy_steps", "-1", "0"]),
        (["job.time_limit=soon"], ["job.time_limit", "HH:MM:SS"]),
        (["nonsense"], ["nonsense", "key=value"]),
    ],
)
def test_bad_input_ends_with_status_2_and_no_traceback(
    words: list[str], names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "bad"
    output = refused([f"run_dir={run_dir}", *OVERRIDES, *words], capsys)
    assert all(name in output for name in names), output
    assert not run_dir.exists()


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error message; test_light_install.py tests the command in a separate process."""
    assert main(["submit", *words]) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    return printed.err


def test_malformed_data_file_is_named_with_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer"\n')
    words = [f"run_dir={tmp_path / 'bad'}", *OVERRIDES, f"data.train={data}", "data.num_eval=1"]
    output = refused(words, capsys)
    assert "line 2" in output
    assert str(data) in output


def test_tokenizer_without_pad_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    words = ["+exp=demo", f"run_dir={tmp_path / 'bad'}", "model=hf", f"model.path={tmp_path}"]
    assert "pad token" in refused(words, capsys)
