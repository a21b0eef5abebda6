"""External trainers on several nodes start after the last node joins; also as ranks under torchrun."""

import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from tests.slurm.cluster import Cluster
from tests.slurm.submitting import quote, run_cli, wait_for_end

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
