"""The real SFT trainer under torchrun on a real Slurm: 2 nodes x 2 ranks, once harmed, once by plain sbatch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light.runs import LightRun, wait_until_clean
from tests.slurm.submitting import ROOT, cli, wait_for_end
from tests.whole_run import exact_rows

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]

NUM_STEPS = 50
WORDS = (
    "+exp=sft_tiny",
    "policy.num_workers=4",
    "data.largest_addend=9",
    "data.num_eval=20",
    # 80 rows stay when 20 are held out, which are 2.5 batches.
    "supervised.num_epochs=20",
    "supervised.batch_size=32",
    "checkpoint.interval=5",
    "eval.interval=20",
    "logging.wandb.mode=disabled",
)


def test_a_harmed_run_and_one_by_plain_sbatch_log_the_same_numbers(cluster: Cluster, shared_dir: Path) -> None:
    harmed, plain = shared_dir / "harmed", shared_dir / "plain"
    nodes = ",".join(cluster.nodes[:2])
    done = cli(
        cluster, shared_dir, "+cluster=slurm_cpu", *WORDS, "cluster.cpus_per_node=2", "cluster.mem_gb_per_node=4",
        f"cluster.slurm.nodelist='{nodes}'", f"run_dir={harmed}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sbatch(cluster, shared_dir, ",".join(cluster.nodes[2:4]), *WORDS, f"run_dir={plain}")
    run = LightRun.open(cluster, harmed)
    wait_for_checkpoint(harmed, 5)
    [*ranks] = [p for p in cluster.processes(run.hosts(1)[1]) if f"supervised {harmed}" in p.cmdline]
    cluster.signal(run.hosts(1)[1], next(p.pid for p in ranks if "bound_torchrun" not in p.cmdline), 9)
    wait_for_save_after_resume(run)
    assert cluster.run(["scontrol", "requeue", run.job]).returncode == 0
    assert wait_for_end(plain, timeout_s=400)["state"] == "finished"
    # end.json of the interruption lies there until the job starts again.
    assert run.wait_for_end(timeout_s=400)["state"] == "finished"
    assert run.outcomes[0] == "failed" and "was killed by SIGKILL" in run.causes[0]
    assert run.outcomes[1] in ("lost", "checkpointed") and run.outcomes[2:] == ["finished"]
    assert len(run.events("trainer/resumed")) == 2
    rows = exact_rows(plain)
    assert len([row for row in rows if row["stage"] == "sft"]) == NUM_STEPS
    assert exact_rows(harmed) == rows
    wait_until_clean(cluster)


def wait_for_save_after_resume(run: LightRun) -> None:
    def is_there() -> bool:
        resumed = [row["time"] for row in run.events("trainer/resumed")]
        return bool(resumed) and any(row["time"] > resumed[0] for row in run.events("checkpoint/saved"))

    wait_until(is_there, "the second attempt to save", timeout_s=240)


def wait_for_checkpoint(run: Path, step: int) -> None:
    def is_there() -> bool:
        return any(int(path.name[5:]) >= step for path in (run / "checkpoints").glob("step-*"))

    wait_until(is_there, f"step {step}", timeout_s=240)


def sbatch(cluster: Cluster, folder: Path, nodes: str, *words: str) -> None:
    script = ROOT / "sbatch_templates" / "job.sbatch"
    options = ["-N2", f"--nodelist={nodes}", "--mem=4G", "--cpus-per-task=2"]
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    env = {**cluster.env, "PATH": path, "PYTHONPATH": str(ROOT)}
    argv = ["sbatch", *options, str(script), "+cluster=slurm_cpu", *words]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
