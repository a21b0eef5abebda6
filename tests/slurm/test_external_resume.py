"""A requeued external trainer resumes from its newest complete checkpoint through its own flags."""

import json
import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.submitting import job_id, quote, run_cli, wait_for_end
from tests.unit.plugins.external.layout_files import half, whole

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).parent / "light" / "external_trainer.py"
ROWS = [
    ("trl", "trl_sft_capybara", 2),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        ("verl", "verl_ppo_gsm8k", 2),
        ("openrlhf", "openrlhf_grpo_mathv60k", 1),
        ("maxtext", "maxtext_grpo_llama3_70b", 1),
        ("nemo_rl", "nemo_rl_grpo_math_1b", 1),
        ("prime_rl", "prime_rl_reverse_text", 1),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "experiment", "num_nodes"), ROWS)
def test_requeue_resumes_from_newest_complete_checkpoint(
    cluster: Cluster, shared_dir: Path, layout: str, experiment: str, num_nodes: int
) -> None:
    run, story = shared_dir / "run", shared_dir / "story.json"
    steps = {str(step): whole(layout, step) for step in (4, 8, 12)}
    story.write_text(json.dumps({"layout": layout, "whole": steps, "half": half(layout, 12)}))
    words = [f"+exp={experiment}", f"external.argv=[{quote(sys.executable)},{quote(PROGRAM)},{quote(story)}]"]
    # The stand-in needs no Ray, and attempts start sooner without it.
    words += ["external.start=torchrun", "+cluster=slurm_cpu", f"run_dir={run}", f"cluster.num_nodes={num_nodes}"]
    words += ["cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2", "job.max_failures=0"]
    run_cli(cluster, shared_dir, *words)
    logs = [RunDir(run).attempt(number).log("driver") for number in (1, 2)]
    wait_until(
        lambda: logs[0].is_file() and "waits to be ended" in logs[0].read_text(), "the stand-in to wait", timeout_s=300
    )
    assert cluster.run(["scontrol", "requeue", job_id(run)]).returncode == 0
    # The first start may leave an end.json, which the second removes.
    wait_until(logs[1].is_file, "the second attempt", timeout_s=300)
    end = wait_for_end(run, timeout_s=300)
    assert (end["state"], end["step"]) == ("finished", 12), end
    assert f"rank 0 of {num_nodes} resumes from step 0" in logs[0].read_text()
    assert f"rank 0 of {num_nodes} resumes from step 8" in logs[1].read_text()
    if num_nodes > 1:
        assert "rank 1 of 2 resumes from step 8" in RunDir(run).attempt(2).log("torchrun-1").read_text()
    started = [row["checkpoint"] for row in read_rows(RunDir(run).events) if row["kind"] == "external/started"]
    assert started[0] is None and started[1].rpartition("/")[2].endswith("8")
