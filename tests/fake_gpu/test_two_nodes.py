"""Two nodes of two fake devices on a real Slurm: masks, NCCL between nodes, the preflight with nvidia-smi."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir, read_json
from tests.fake_gpu.machine import PROFILES, build_environment, write_machine
from tests.fake_gpu.test_device import PYTHON, pytestmark  # noqa: F401  (the same environment)
from tests.fake_gpu.test_exact import SFT, compare, run_on_cpu
from tests.lock import ROOT
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.cluster.packages import is_possible
from tests.slurm.conftest import NO_SLURM
from tests.whole_run import exact_rows


@pytest.fixture
def root() -> Iterator[Path]:
    """pytest's folders are too long for a cluster."""
    folder = Path(tempfile.mkdtemp(prefix="fg-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(2000)
def test_sft_over_two_nodes_of_two_fake_gpus_equals_cpu(root: Path, tmp_path: Path) -> None:
    if reason := is_possible():
        pytest.skip(NO_SLURM + reason)
    shared, run = root / "shared", root / "shared/run"
    shared.mkdir()
    with Cluster(root / "c", num_nodes=2, gpus=2, shared=[shared]) as cluster:
        for node in cluster.nodes:
            (shared / node).mkdir()
            write_machine(shared / node, PROFILES["h100"], 2)
        environ = build_environment(shared / "%h", cluster.env, PYTHON.parents[1])
        environ |= {"FAKE_GPU_SHARED": str(shared), "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(shared / "state")}
        words = [*SFT, "+cluster=slurm_cpu", "cluster.accelerator=nvidia", "cluster.gpus_per_node=2"]
        words += ["cluster.gpu_mem_gb=80", f"cluster.python={PYTHON}", f"run_dir={run}", "logging.wandb.mode=disabled"]
        argv = [PYTHON, "-m", "slurm_rl", *words]
        done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until(lambda: RunDir(run).end.exists(), "the run has not ended", timeout_s=1500)
    assert read_json(RunDir(run).end)["state"] == "finished", (run / "events.jsonl").read_text()
    for one, other in zip(run_on_cpu(tmp_path, SFT), exact_rows(run), strict=True):
        compare(one, other)
