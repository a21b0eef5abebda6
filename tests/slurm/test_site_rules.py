"""Site restrictions: QOS and accounts, requeues, missing commands and file systems on login nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.cluster.accounting import ACCOUNT
from tests.slurm.cluster.reset import is_idle
from tests.slurm.conftest import make_shared_dir
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, job_id, queue, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm

GPUS = ["cluster.accelerator=nvidia", "cluster.gpus_per_node=2", "cluster.num_nodes=1", "rollout.colocate=true"]


@pytest.fixture
def strict_cluster(accounting_cluster: Cluster) -> Iterator[Cluster]:
    """Cluster that enforces limits; QOS `tight` allows one GPU per user, `deny` refuses at submission."""
    for name, *flags in (("tight",), ("deny", "Flags=DenyOnLimit")):
        change(accounting_cluster, "add", "qos", name, "set", "MaxTRESPerUser=gres/gpu=1", *flags)
    change(accounting_cluster, "modify", "user", "root", "set", "qos+=tight,deny")
    with accounting_cluster.changed({"AccountingStorageEnforce": "associations,limits,qos"}):
        # Until the nodes register with the new controller, it finds no matching node.
        wait_until(lambda: is_idle(accounting_cluster), "the nodes to report")
        yield accounting_cluster


def change(cluster: Cluster, *words: str) -> None:
    done = cluster.run(["sacctmgr", "-i", *words])
    assert done.returncode == 0 or "Nothing new added" in done.stdout + done.stderr, done.stdout + done.stderr


def test_refusing_qos_is_reported_at_submission(strict_cluster: Cluster) -> None:
    folder = make_shared_dir(strict_cluster)
    for qos, expected in (("nope", "Invalid qos specification"), ("deny", "QOSMaxGRESPerUser")):
        words = ["+exp=demo", "+cluster=slurm_cpu", "run_dir=run", f"cluster.slurm.account={ACCOUNT}", *GPUS]
        done = cli(strict_cluster, folder, *words, f"cluster.slurm.qos={qos}")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert expected in done.stderr
        assert list(folder.iterdir()) == []
    assert queue(strict_cluster) == ""


def test_login_node_without_scontrol_and_sacct_runs_job(accounting_cluster: Cluster) -> None:
    """Some sites offer only sbatch, squeue, scancel and sinfo on login nodes."""
    folder = make_shared_dir(accounting_cluster)
    env = {"PATH": str(make_bin(folder, "sbatch", "squeue", "scancel", "sinfo"))}
    run, python = folder / "run", make_light_python(folder)
    # The nodes have all commands.
    words = [f"cluster.slurm.account={ACCOUNT}", 'cluster.setup=["export PATH=/usr/bin:/bin"]']
    first = submit(accounting_cluster, run, python, *words, env=env)
    wait_for_step(run)
    assert "state   running: on " in cli(accounting_cluster, folder, "status", "run", env=env).stdout
    assert cli(accounting_cluster, folder, "cancel", "run", env=env).returncode == 0
    assert wait_for_end(run)["state"] == "interrupted"
    assert "state   interrupted" in cli(accounting_cluster, folder, "status", "run", env=env).stdout
    resumed = cli(accounting_cluster, folder, "resume", "run", env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert job_id(run) != first
    wait_for_step(run, attempt=2)
    assert cli(accounting_cluster, folder, "cancel", "run", env=env).returncode == 0
    assert wait_for_end(run)["state"] == "interrupted"


def make_bin(folder: Path, *programs: str) -> Path:
    """Make a folder for PATH with these Slurm programs and the tools of any login node."""
    path = folder / "bin"
    path.mkdir()
    for program in (*programs, "sh", "env"):
        (path / program).symlink_to(f"/usr/bin/{program}")
    return path


@pytest.mark.slow
def test_run_root_missing_on_login_node_is_refused(cluster: Cluster, shared_dir: Path, tmp_path: Path) -> None:
    """Home is not mounted on the nodes; they need nothing from the folder of submission."""
    words = ["+exp=demo", "+cluster=slurm_cpu", f"cluster.run_root={shared_dir}/runs", "name=far"]
    done = cli(cluster, tmp_path, *words, f"cluster.python={make_light_python(shared_dir)}")
    assert done.returncode == 0, done.stderr
    [run] = (shared_dir / "runs").iterdir()
    wait_for_step(run)
    assert list(tmp_path.iterdir()) == []
    finish(run)
