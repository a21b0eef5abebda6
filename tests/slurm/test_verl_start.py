"""verl itself, as released, in an environment of its own, started by us over two and four nodes.

Without GPUs it goes as far as asking Ray for them: its config is read and checked, its model's tokenizer loaded, its
rows read by its own loader, its queue up on the run's Ray cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.jsonl import read_rows
from tests.slurm.cluster import Cluster
from tests.slurm.submitting import cli, quote, wait_for_end
from tests.tiny_llama import build_tiny_llama
from tests.train.external.conftest import RELEASES
from tests.train.external.test_verl_data import make_rows

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def verl_python() -> Path:
    """The Python of an environment with verl and its own pins, made once; nodes see the user's cache, not /tmp."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "slurm_rl" / "trainers" / RELEASES["verl"].replace("==", "-")
    python = folder / "bin/python"
    if not (folder / "whole").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        version = subprocess.run(
            [sys.executable, "-c", "import torch, ray; print(torch.__version__, ray.__version__)"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        # One after the other: all at once pip looks for versions for a quarter of an hour.
        pins = [f"torch=={version[0]}", f"ray[default]=={version[1]}"]
        for wanted in (pins, [RELEASES["verl"]], [RELEASES["verl"].replace("==", "[verl-core]==")]):
            install = [str(python), "-m", "pip", "install", "--quiet", *wanted]
            done = subprocess.run(install, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"{wanted} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        (folder / "whole").touch()
    return python


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_verl_comes_to_the_gpus_that_it_lacks(
    cluster: Cluster, shared_dir: Path, verl_python: Path, num_nodes: int
) -> None:
    run, model = shared_dir / "run", build_tiny_llama(shared_dir / "model")
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
        # One is all that the CPUs of the nodes leave room for.
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.n_gpus_per_node": 1,
    }
    words = ["+exp=verl_ppo_gsm8k", "+cluster=slurm_cpu", f"cluster.num_nodes={num_nodes}", f"run_dir={run}"]
    words += ["cluster.cpus_per_node=2", f"cluster.python={quote(verl_python)}", f"external.model={model}"]
    words += [f"external.argv=[{quote(verl_python)},-m,verl.trainer.main_ppo]"]
    words += [f"external.args.{name}={value}" for name, value in args.items()]
    done = cli(cluster, shared_dir, *words, "job.max_failures=0", "cluster.mem_gb_per_node=2")
    assert done.returncode == 0, done.stderr
    end = wait_for_end(run, timeout_s=1000)
    log = (run / "attempts/1/logs/driver.log").read_text()
    assert f"Total available GPUs 0 is less than total desired GPUs {num_nodes}" in log, (end, log[-3000:])
    assert "train dataset size: 3" in log, "its loader read the rows that prepare writes"
    assert end["state"] == "failed" and "ended with exit status 1" in end["cause"], end
    ready = [row["nodes"] for row in read_rows(run / "events.jsonl") if row["kind"] == "ray/cluster_ready"]
    assert ready == [num_nodes]
