"""External trainers on several nodes start after the last node joins; also as ranks under torchrun."""

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

# Like verl: count the nodes, fail if one is missing, and run an actor on the last node.
COUNT_NODES = """
import os, sys, time, ray
ray.init()
num_nodes = sum(node["Alive"] for node in ray.nodes())
print("nodes:", num_nodes, flush=True)

@ray.remote(num_cpus=0, resources={f"slurm_rl_node_{num_nodes - 1}": 0.1})
def speak():
    print("actor on", os.uname().nodename, flush=True)

ray.get(speak.remote())
log = os.environ["SLURM_RL_RUN_DIR"] + "/attempts/1/logs/driver.log"
give_up = time.monotonic() + 120
while "actor on" not in open(log).read() and time.monotonic() < give_up:
    time.sleep(0.2)
"""


# Like trainers without Ray: all-reduce, save, and lose a rank.
ALL_REDUCE = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), sys.argv[1:], flush=True)
if os.environ["SLURM_RL_RESUME"] == "0":
    os.makedirs(os.environ["SLURM_RL_CHECKPOINTS"] + "/global_step7", exist_ok=True)
    if dist.get_rank() == 1:
        sys.exit(5)
dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_of_any_program_start_and_restart(cluster: Cluster, shared_dir: Path) -> None:
    run, script = shared_dir / "run", shared_dir / "sum.py"
    script.write_text(ALL_REDUCE)
    words = ["+exp=command", "external.start=torchrun", f"external.argv=[{quote(sys.executable)},{quote(script)}]"]
    words += ["external.resume.again=true", "+cluster=slurm_cpu", "job.max_failures=1", f"run_dir={run}"]
    words += [f"checkpoint.upload_url='file://{shared_dir}/bucket'"]
    run_cli(cluster, shared_dir, *words)
    end = wait_for_end(run, timeout_s=500)
    assert (end["state"], end["step"]) == ("finished", 7), end
    first, second = ((run / "attempts" / number / "logs") for number in ("1", "2"))
    assert "rank 0 of 2 sum 3.0 []" in (first / "driver.log").read_text()
    assert "rank 0 of 2 sum 3.0 ['--again']" in (second / "driver.log").read_text()
    assert "rank 1 of 2 sum 3.0 ['--again']" in (second / "torchrun-1.log").read_text()
    events = read_rows(run / "events.jsonl")
    causes = [row["cause"] for row in events if row["kind"] == "attempt/ended"]
    assert "ended with exit status" in causes[0], causes
    # After a rank's failure Slurm ends the step; the upload from the head may not finish within a short KillWait.
    copies = sorted((shared_dir / "bucket/run").iterdir())
    copy_events = [row for row in events if row["kind"].startswith("run/cop")]
    assert [copy.name[:10] for copy in copies] == ["attempt-1-", "attempt-2-"], copy_events
    assert all((copy / "complete.json").is_file() for copy in copies)


def test_program_starts_after_last_node_joins(cluster: Cluster, shared_dir: Path) -> None:
    run, script, last = shared_dir / "run", shared_dir / "count.py", cluster.nodes[1]
    script.write_text(COUNT_NODES)
    program = f"[{quote(sys.executable)},{quote(script)}]"
    words = ["+exp=command", f"external.argv={program}", "+cluster=slurm_cpu", f"run_dir={run}"]
    words += ["cluster.num_nodes=2", "cluster.cpus_per_node=1", "cluster.mem_gb_per_node=2"]
    words += ["job.max_failures=0", "ray.dashboard=false", f'cluster.setup=["test $(hostname) != {last} || sleep 15"]']
    run_cli(cluster, shared_dir, *words)
    end = wait_for_end(run, timeout_s=500)
    assert end["state"] == "finished", end
    log = (run / "attempts" / "1" / "logs" / "driver.log").read_text()
    assert f"actor on {last}" in log and "nodes: 2" in log, log


PROGRAM = Path(__file__).parent / "light" / "external_trainer.py"
ROWS = [
    ("trl", "trl_sft_capybara", 2),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        ("verl", "verl_ppo_gsm8k", 2),
        ("openrlhf", "openrlhf_grpo_mathv60k", 1),
        ("maxtext", "maxtext_grpo_llama3_70b", 1),
        ("nemo_rl", "nemo_rl_grpo_math_1b", 1),
        ("prime_rl", "prime_rl_reverse_text", 1),
        ("skyrl", "skyrl_grpo_gsm8k", 1),
        ("slime", "slime_grpo_qwen3_4b", 1),
        ("open_instruct", "open_instruct_grpo_gsm8k", 1),
        ("torchtitan", "torchtitan_llama3_8b", 1),
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
