"""The real MLflow client and file store, in a process with mlflow-skinny from a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lock import ROOT

RELEASE = "mlflow-skinny==3.17.2"
# Step 3 has the checkpoint; steps 4 and 5 come again, with another value to see which one stays.
SCRIPT = """
import json, sys
packages, folder, store = sys.argv[1:]
sys.path.append(packages)  # after our own, of which it has other versions
from slurm_rl.config.job import LoggingConfig
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.common.metrics_log import MetricsLogger

mlflow = {"tracking_uri": store, "experiment": "sums"}
logging = LoggingConfig.model_validate({"wandb": {"mode": "disabled"}, "tensorboard": False, "mlflow": mlflow})
for rewind_to, steps, value in [(-1, range(1, 6), 0.25), (3, range(4, 8), 0.5)]:
    logger = MetricsLogger(RunDir(folder), logging, "addition", {"optim": {"lr": 0.5}})
    logger.rewind(rewind_to)
    for step in steps:
        logger.log(step, "grpo", {"reward/mean": value})
        if step % 2:
            logger.log(step, "eval", {"accuracy/pass@4": value})
    logger.close()

from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=store)
(run,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
history = {k: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics}
print(json.dumps([run.info.status, run.info.run_name, run.data.params, history]))
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    folder = Path("~/.cache/slurm_rl/mlflow").expanduser() / f"{RELEASE}-{sys.version_info[0]}{sys.version_info[1]}"
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}.part")
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(part), RELEASE]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{RELEASE} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
        part.rename(folder)
    return folder


@pytest.mark.slow
def test_resumed_run_continues_its_mlflow_run(packages: Path, tmp_path: Path) -> None:
    words = (str(packages), str(tmp_path / "addition-1"), f"file://{tmp_path}/mlruns")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, name, params, history = json.loads(done.stdout.splitlines()[-1])
    assert (status, name, params) == ("FINISHED", "addition-1", {"optim.lr": "0.5"})
    assert history["reward/mean"] == [[step, 0.25 if step < 6 else 0.5] for step in range(1, 8)]
    assert history["accuracy/pass_4"] == [[1, 0.25], [3, 0.25], [5, 0.25], [7, 0.5]]
    assert not (tmp_path / "addition-1" / "events.jsonl").exists(), "no failure"
