"""Released trainers save before the time limit by their own code, and a requeue resumes at that very step."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitting import cli, quote, run_cli
from tests.slurm.test_verl_start import read_logs
from tests.slurm.test_verl_start import verl_python as verl_python
from tests.tiny_llama import build_tiny_llama
from tests.whole_run import events_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(2400)]

VERL_TRAINER = Path(__file__).parent / "light" / "verl_trainer.py"


def wait_for_attempt(run: RunDir, number: int, text: str, timeout_s: float) -> str:
    """Return the logs of the attempt once they contain the text."""

    def has_text() -> bool:
        assert not run.end.is_file(), run.end.read_text()
        return run.attempt(number).log("driver").is_file() and text in read_logs(run.attempt(number))

    wait_until(has_text, f"{text!r} in attempt {number}", timeout_s=timeout_s)
    return read_logs(run.attempt(number))


def first_end(run: RunDir) -> dict[str, Any]:
    row: dict[str, Any] = events_of(run.path, "attempt/ended")[0]
    return row


def test_verl_saves_before_limit_and_resumes_there(cluster: Cluster, shared_dir: Path, verl_python: str) -> None:
    """See light/verl_trainer.py for what is verl's own."""
    run, model = RunDir(shared_dir / "run"), build_tiny_llama(shared_dir / "model")
    words = ["+exp=verl_ppo_gsm8k", "+cluster=slurm_cpu", "cluster.num_nodes=1", f"run_dir={run.path}"]
    words += ["cluster.cpus_per_node=2", "cluster.mem_gb_per_node=8", "ray.object_store_gb=0.2"]
    words += ["job.time_limit=6", "job.checkpoint_lead_s=40", "job.max_failures=0"]
    words += [f"cluster.python={quote(verl_python)}", f"external.model={model}", "~external.needs.vllm"]
    words += [f"external.argv=[{quote(verl_python)},{quote(VERL_TRAINER)}]", "external.args.trainer.save_freq=1000"]
    words += ["external.args.algorithm.adv_estimator=grpo", "external.args.trainer.test_freq=-1"]
    run_cli(cluster, shared_dir, *words)
    wait_for_attempt(run, 1, "step 1 has trained row 0", timeout_s=420)
    later = wait_for_attempt(run, 2, "has trained", timeout_s=900)
    log = read_logs(run.attempt(1))
    trained = [int(step) for step in re.findall(r"step (\d+) has trained", log)]
    saved = dict(re.findall(r"saved step (\d+) with (\w+)", log))
    newest = max(int(step) for step in saved)
    assert newest == max(trained) and 1 < len(saved) < len(trained), "not a step is lost, and the last ones are saved"
    assert first_end(run)["outcome"] == "checkpointed" and first_end(run)["cause"] == "job.time_limit is near"
    started = events_of(run.path, "external/started")
    assert started[1]["checkpoint"] == f"global_step_{newest}"
    assert first_end(run)["time"] >= started[0]["save_by"] > started[0]["time"]
    assert f"starts after step {newest}" in later and f"loaded {saved[str(newest)]}" in later
    assert re.search(r"step (\d+) has trained row (\d+)", later).groups() == (str(newest + 1), str(newest))  # type: ignore[union-attr]
    cli(cluster, shared_dir, "cancel", str(run.path))


def test_trl_saves_at_limit_and_resumes_there(cluster: Cluster, shared_dir: Path) -> None:
    run, model = RunDir(shared_dir / "run"), build_tiny_llama(shared_dir / "model")
    (shared_dir / "data").mkdir()
    rows = [{"prompt": f"{n}+{n + 1}=", "completion": str(2 * n + 1)} for n in range(64)]
    (shared_dir / "data/train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = {
        "model_name_or_path": model,
        "dataset_name": shared_dir / "data",
        "max_steps": 1_000_000,
        "save_steps": 1_000_000,
        "logging_steps": 1,
        "gradient_accumulation_steps": 1,
        "use_cpu": "true",
        "bf16": "false",
        "gradient_checkpointing": "false",
    }
    words = ["+exp=trl_sft_capybara", "+cluster=slurm_cpu", "cluster.num_nodes=1", f"run_dir={run.path}"]
    words += ["cluster.cpus_per_node=2", "cluster.mem_gb_per_node=4", "+cluster.env.HF_HUB_OFFLINE=1"]
    words += ["job.time_limit=6", "job.checkpoint_lead_s=120", "job.max_failures=0"]
    words += [f"external.argv=[{quote(sys.executable)},-m,trl.scripts.sft]"]
    run_cli(cluster, shared_dir, *words, *(f"external.args.{name}={value}" for name, value in args.items()))
    wait_for_attempt(run, 1, "'loss'", timeout_s=240)
    wait_for_attempt(run, 2, "'loss'", timeout_s=900)
    (saved,) = (int(path.name.partition("-")[2]) for path in run.checkpoints.glob("checkpoint-*"))
    assert first_end(run)["outcome"] == "checkpointed", first_end(run)
    # A save within a step is of the step before; then that step still ends, and is repeated.
    assert read_logs(run.attempt(1)).count("'loss'") - saved in (0, 1)
    assert events_of(run.path, "external/started")[1]["checkpoint"] == f"checkpoint-{saved}"
    cli(cluster, shared_dir, "cancel", str(run.path))
    wait_until(run.end.is_file, "the end", timeout_s=200)
    newest = max(run.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    state = json.loads((newest / "trainer_state.json").read_text())
    steps = [row["step"] for row in state["log_history"] if "loss" in row]
    # A save at the end of a step comes before its row.
    assert {*steps, saved, state["global_step"]} == {*range(1, state["global_step"] + 1)}
    assert len(steps) == len({*steps}) > saved
