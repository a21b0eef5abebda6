"""verl, as released, in its own environment, started on two and four nodes.

Without GPUs it runs until it requests them from Ray: it validates its config, reads tokenizer and rows, starts its
queue on the run's Ray, and its resource pool finds that GPUs are missing.
"""

from importlib.metadata import version
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import AttemptDir, RunDir
from tests.adapters_python import make_environment
from tests.slurm.cluster import Cluster
from tests.slurm.submitting import quote, run_cli, wait_for_end
from tests.tiny_llama import build_tiny_llama
from tests.train.external.releases import RELEASES
from tests.train.external.test_verl_data import make_rows
from tests.whole_run import events_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]

RELEASE = RELEASES["verl"]


@pytest.fixture(scope="module")
def verl_python() -> str:
    """Python of an environment with verl and its pins; nodes see the user's cache, but not /tmp."""
    # In separate steps: for all at once, pip searches versions for 15 minutes.
    pins = [f"torch=={version('torch').partition('+')[0]}", f"ray[default]=={version('ray')}"]
    return make_environment("verl", pins, [RELEASE], [RELEASE.replace("==", "[verl-core]==")])


def read_logs(attempt: AttemptDir) -> str:
    """Return the logs of driver and actors; Ray may not have forwarded the last lines."""
    logs = [attempt.log("driver"), *attempt.logs.glob("ray-*/worker-*")]
    return "\n".join(log.read_text() for log in logs)


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_verl_starts_up_to_missing_gpus(cluster: Cluster, shared_dir: Path, verl_python: str, num_nodes: int) -> None:
    run, model = RunDir(shared_dir / "run"), build_tiny_llama(shared_dir / "model")
    make_rows("gsm8k", shared_dir / "rows")
    args = {
        "data.train_files": shared_dir / "rows/train.parquet",
        "data.val_files": shared_dir / "rows/test.parquet",
        "data.train_batch_size": num_nodes,
        "data.max_prompt_length": 400,
        "data.max_response_length": 64,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": num_nodes,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "critic.ppo_micro_batch_size_per_gpu": 1,
        # The default is eight, one core each.
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.n_gpus_per_node": 1,
    }
    words = ["+exp=verl_ppo_gsm8k", "+cluster=slurm_cpu", f"cluster.num_nodes={num_nodes}", f"run_dir={run.path}"]
    # Four of its processes import torch, most of them on the head with Ray's own: more than 2 GB.
    words += ["cluster.cpus_per_node=2", "cluster.mem_gb_per_node=8", "ray.object_store_gb=0.2"]
    words += [f"cluster.python={quote(verl_python)}", f"external.model={model}", "job.max_failures=0"]
    words += [f"external.argv=[{quote(verl_python)},-m,verl.trainer.main_ppo]"]
    words += ["~external.needs.vllm"]  # verl's environment on a CPU has none
    run_cli(cluster, shared_dir, *words, *(f"external.args.{name}={value}" for name, value in args.items()))
    end = wait_for_end(run.path, timeout_s=1500)
    log = read_logs(run.attempt(1))
    assert "All configuration checks passed successfully" in log, (end, log[-5000:])
    assert "train dataset size: 3" in log, "its loader read the rows that prepare writes"
    assert f"Total available GPUs 0 is less than total desired GPUs {num_nodes}" in log, (end, log[-5000:])
    assert end["state"] == "failed" and "ended with exit status 1" in end["cause"], end
    assert [row["nodes"] for row in events_of(run.path, "ray/cluster_ready")] == [num_nodes]
