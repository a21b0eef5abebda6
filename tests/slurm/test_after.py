"""`job.after`: a successor stays pending through requeues of its predecessor and reports its failure as the cause."""

import sys
from pathlib import Path

import pytest

from slurm_rl.launch.controller.record import RunState
from slurm_rl.launch.jobs import cancel_runs, read_states
from slurm_rl.run_dir.jsonl import read_rows
from tests.docs.markdown import DOCS, read_blocks
from tests.slurm.cluster import Cluster
from tests.slurm.light.runs import LightRun, slurm_environment
from tests.slurm.submitting import cli, run_cli, wait_for_end

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]


def state(run: LightRun) -> RunState:
    with slurm_environment(run.cluster):
        return read_states([run.run_dir])[0]


@pytest.mark.slow
def test_successor_waits_through_requeue_and_resumes(cluster: Cluster, shared_dir: Path) -> None:
    small = ("cluster.num_nodes=1",)
    first = LightRun(cluster, shared_dir / "first", *small, num_steps=400, step_s=0.05)
    second = LightRun(cluster, shared_dir / "second", *small, f"job.depends_on={first.run_dir.path}", num_steps=3)
    first.wait_for_step(5)
    assert str(state(second)).startswith(f"pending: after {first.run_dir.path}"), state(second)
    assert cluster.run(["scontrol", "requeue", first.job]).returncode == 0
    first.wait_for_events("trainer/started", 2)
    assert state(second).word == "pending", "a requeued job has not ended"

    with slurm_environment(cluster):
        assert cancel_runs([first.run_dir]) == 1
    end = second.wait_for_end()
    assert end["state"] == "failed" and f"{first.run_dir.path} is interrupted" in end["cause"]
    assert not second.run_dir.attempt_numbers(), "nothing was started"

    first.submit()
    second.submit()
    assert state(second).word == "pending"
    assert first.wait_for_end(timeout_s=240)["state"] == "finished"
    assert second.wait_for_end(timeout_s=240)["state"] == "finished"
    [ended] = [row["time"] for row in first.events("job/ended") if row["state"] == "finished"]
    starts = [row["time"] for row in second.events("attempt/started")]
    assert starts and min(starts) > ended


FAIL_ONCE = """
import pathlib, sys
good = pathlib.Path(__file__).with_name("good")
sys.exit(0 if good.is_file() else "good is not there")
"""


@pytest.mark.slow
def test_pipeline_resumes_at_failed_stage(cluster: Cluster, shared_dir: Path) -> None:
    script, folder = shared_dir / "fail_once.py", shared_dir / "both"
    script.write_text(FAIL_ONCE)
    stage = f'"+exp=command external.argv=[{sys.executable},{script}]"'
    (shared_dir / "two.yaml").write_text(f"one: {stage}\ntwo: {stage}\n")
    words = ["+cluster=slurm_cpu", "cluster.num_nodes=1", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2"]
    words += ["job.max_failures=0", "ray.dashboard=false"]
    run_cli(cluster, shared_dir, "submit", "two.yaml", f"--dir={folder}", *words)
    assert wait_for_end(folder / "one", timeout_s=240)["state"] == "failed"
    end = wait_for_end(folder / "two", timeout_s=240)
    assert end["state"] == "failed" and f"{folder}/one is failed" in end["cause"]
    (shared_dir / "good").touch()
    run_cli(cluster, shared_dir, "resume", str(folder))
    for stage in ("one", "two"):
        assert wait_for_end(folder / stage, timeout_s=240)["state"] == "finished"
    lines = cli(cluster, shared_dir, "status", str(folder)).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["one", "finished"], ["two", "finished"]]
    assert cli(cluster, shared_dir, "resume", str(folder)).stderr == "", "there is nothing left to do"


# The page's commands with smaller sizes: 4 minutes instead of 12.
SMALL = {
    "sft": "data.largest_addend=9 data.num_eval=20 supervised.num_epochs=5 supervised.batch_size=32",
    "grpo": "data.largest_addend=9 data.num_eval=20 trainer.num_steps=40 trainer.prompts_per_step=8",
    "measure": "+eval.sets.sums.largest_addend=9",
}
PAGE = DOCS / "algorithms.md"


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_sft_then_grpo_from_its_export(cluster: Cluster, shared_dir: Path) -> None:
    """The pipeline ends with an eval; in the middle, `status` shows one stage in each state."""
    blocks = list(read_blocks(PAGE))
    [pipeline] = [number for number, block in enumerate(blocks) if block.language == "yaml"]
    text = blocks[pipeline].text
    lines = [f"{line} {SMALL[line.partition(':')[0]]}" for line in text.splitlines()]
    (shared_dir / "sft-then-grpo.yaml").write_text("\n".join(lines))
    folder = shared_dir / "runs" / "both"
    start, table = [words[3:] for block in blocks[pipeline:] if block.language == "bash" for words in block.commands()][
        :2
    ]
    small = ["cluster.num_nodes=1", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=4"]
    run_cli(cluster, shared_dir, *start, *small, "logging.wandb.mode=disabled")
    first, second, third = (LightRun.open(cluster, folder / stage) for stage in SMALL)
    first.wait_for_events("attempt/started")
    assert cluster.run(["scontrol", "requeue", first.job]).returncode == 0
    second.wait_for_step(2, timeout_s=390)
    shown = cli(cluster, shared_dir, *table)
    assert shown.returncode == 0, shown.stderr
    states = [line.split()[:2] for line in shown.stdout.splitlines()[1:]]
    assert states == [["sft", "finished"], ["grpo", "running"], ["measure", "pending"]]
    assert third.wait_for_end(timeout_s=390)["state"] == "finished"
    assert len(first.events("attempt/started")) >= 2, "the first was killed once"
    for before, after in ((first, second), (second, third)):
        starts = [row["time"] for row in after.events("attempt/started")]
        assert min(starts) > max(row["time"] for row in before.events("job/ended"))
    assert (folder / "grpo" / "export" / "config.json").is_file()
    assert any("set/sums/avg@8" in row for row in read_rows(third.run_dir.metrics))
