"""`status`, `logs`, `cancel` and `resume` on jobs of a real Slurm, also those of plain sbatch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.other_host import start_on_other_host
from tests.slurm.cluster import Cluster, wait_until
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import ROOT, cli, finish, job_id, queue, submit, wait_for_end, wait_for_step

pytestmark = pytest.mark.slurm
RESUME = "import sys; from slurm_rl.__main__ import main; sys.exit(main(['resume', sys.argv[1]]))"


def state_of(cluster: Cluster, run: Path) -> str:
    lines = cli(cluster, run.parent, "status", str(run)).stdout.splitlines()
    return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("state"))


@pytest.mark.versions
def test_verbs_agree_through_run(cluster: Cluster, shared_dir: Path) -> None:
    """Run, follow, cancel, resume and finish; all verbs agree on the state."""
    run, python = shared_dir / "run", make_light_python(shared_dir)
    first = submit(cluster, run, python)
    wait_for_step(run)
    nodes = f"{cluster.nodes[0][0]}[1-2]"
    assert state_of(cluster, run).startswith(f"running: on {nodes}, attempt 1")
    refused = cli(cluster, shared_dir, "resume", str(run))
    assert (refused.returncode, "cancel" in refused.stderr) == (2, True)
    resume = start_on_other_host("elsewhere", RESUME, str(run), env=cluster.env)
    output, _ = resume.communicate(timeout=120)
    assert resume.returncode == 2 and f"got slurm job {first} (process" in output and f"cancel {run}" in output, output
    follow = [sys.executable, "-m", "slurm_rl", "logs", "-f", str(run)]
    env = {**cluster.env, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(follow, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert cli(cluster, shared_dir, "cancel", str(run)).returncode == 0
        out, err = following.communicate(timeout=120)
    assert "trainer of attempt 1 resumes after step 0" in out
    assert err.splitlines()[-1].startswith("# interrupted: cancelled by the user (SIGTERM)")
    assert wait_for_end(run)["state"] == "interrupted"
    resume_twice_at_once(cluster, run)
    assert job_id(run) != first
    # The first job may still be completing.
    assert {*queue(cluster).split()[::2]} - {first} == {job_id(run)}
    wait_for_step(run, attempt=2)
    finish(run)
    # Without a name, and by name and job id from an unrelated folder.
    elsewhere = shared_dir / "elsewhere"
    elsewhere.mkdir()
    for words in ([], [run.name], [job_id(run)]):
        assert f"run     {run}" in cli(cluster, elsewhere, "status", *words).stdout
    wait_until((run / "report.html").is_file, "the controller to write the report")
    assert json.loads((run / "summary.json").read_text())["state"] == "finished"
    assert "attempt 2" in cli(cluster, shared_dir, "logs", str(run)).stdout
    assert "not running" in cli(cluster, shared_dir, "cancel", str(run)).stderr


def resume_twice_at_once(cluster: Cluster, run: Path) -> None:
    """Resume from two hosts: one gets the run, the other is refused."""
    resumes = [start_on_other_host(name, RESUME, str(run), env=cluster.env) for name in ("here", "there")]
    outputs = [resume.communicate(timeout=240)[0] for resume in resumes]
    assert sorted(resume.returncode for resume in resumes) == [0, 2], outputs
    won, lost = sorted(outputs, key=lambda text: "the same plan" not in text)
    assert "the same plan" in won
    assert f"cancel {run}" in lost, lost


@pytest.mark.slow
def test_running_job_accepts_verbs(cluster: Cluster, shared_dir: Path) -> None:
    """`attach` opens a shell on the second node with the run's environment, and a tunnel to the first."""
    run = shared_dir / "run"
    submit(cluster, run, make_light_python(shared_dir))
    wait_for_step(run)
    words = ("sh", "-c", 'hostname; echo "$PYTHONPATH"; test -r "$RAY_AUTH_TOKEN_PATH" && echo "$RAY_AUTH_MODE"')
    shell = cli(cluster, run.parent, "attach", str(run), "--node=1", "--", *words)
    assert shell.returncode == 0, shell.stderr
    assert shell.stdout.splitlines() == [cluster.nodes[1], str(run / "code"), "token"]
    tunnel = cli(cluster, run.parent, "attach", str(run), "--dashboard").stdout
    assert f" {cluster.nodes[0]}\n" in tunnel


def test_pending_run_names_reason_and_can_be_cancelled(cluster: Cluster, shared_dir: Path) -> None:
    run = shared_dir / "run"
    # `status` quotes Slurm's reason, so any reason will do.
    submit(cluster, run, make_light_python(shared_dir), "+cluster.slurm.extra.hold=true")
    assert state_of(cluster, run).startswith("pending: JobHeldUser")
    missing = cli(cluster, shared_dir, "logs", str(run))
    assert (missing.returncode, "pending" in missing.stderr) == (0, True)
    assert cli(cluster, shared_dir, "cancel", str(run)).returncode == 0
    assert state_of(cluster, run) == "cancelled: cancelled while it waited to start"
    assert "as it starts" in cli(cluster, shared_dir, "resume", str(run), "job.time_limit=2").stderr
    resumed = cli(cluster, shared_dir, "resume", str(run), "job.time_limit=7")
    assert resumed.returncode == 0, resumed.stderr
    assert cluster.run(["squeue", "-h", "-o", "%i %l"]).stdout.split() == [job_id(run), "7:00"]
    assert read_json(run / "plan.json")["limits"]["time_limit_min"] == 7
    assert "time_limit: '7'" in (run / "config.yaml").read_text()
    assert state_of(cluster, run).startswith("pending")


def test_unreachable_slurm_keeps_known_state(cluster: Cluster, shared_dir: Path) -> None:
    run = shared_dir / "run"
    submit(cluster, run, make_light_python(shared_dir), "+cluster.slurm.extra.hold=true")
    env = {"PATH": str(shared_dir)}
    done = cli(cluster, shared_dir, "status", str(run), env=env)
    assert (done.returncode, "unknown: squeue must be on PATH" in done.stdout) == (0, True)
    assert cli(cluster, shared_dir, "resume", str(run), env=env).returncode == 2
    assert json.loads((run / "job.json").read_text())["launcher"] == "slurm"


TEMPLATE = ROOT / "sbatch_templates" / "job.sbatch"


def sbatch(cluster: Cluster, folder: Path, *words: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**cluster.env, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(["sbatch", "--parsable", *words], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def overrides(folder: Path) -> list[str]:
    return ["+exp=demo", "+cluster=slurm_cpu", "name=plain", f"cluster.python={make_light_python(folder)}"]


@pytest.mark.versions
def test_plain_sbatch_uses_allocation_and_resumes(cluster: Cluster, shared_dir: Path) -> None:
    job = sbatch(cluster, shared_dir, "-N3", "--mem=2G", str(TEMPLATE), *overrides(shared_dir), "cluster.num_nodes=9")
    run = shared_dir / "runs" / f"plain-{job}"
    wait_for_step(run)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["num_nodes"], plan["cpus_per_node"], plan["gpus_per_node"]) == (3, 4, 0)
    assert plan["sbatch"]["partition"] == "main"
    assert job_id(run) == job
    cluster.run(["scontrol", "requeue", job])
    wait_for_step(run, attempt=2)
    assert "running" in cli(cluster, shared_dir, "status", str(run)).stdout
    finish(run)
    first, second = [(run / "attempts" / str(n) / "logs" / "driver.log").read_text() for n in (1, 2)]
    assert "after step 0" in first
    assert "after step 0" not in second
    assert list(shared_dir.glob("runs/*")) == [run]


def test_failed_start_is_explained_in_job_log(cluster: Cluster, shared_dir: Path) -> None:
    job = sbatch(cluster, shared_dir, "-N1", str(TEMPLATE), "+exp=demo", "+cluster=nvidia_h100", "optim.lrr=1")
    log = shared_dir / f"slurm_rl-{job}.log"
    wait_until(lambda: log.is_file() and "did you mean optim.lr" in log.read_text(), "the error")
    assert "Traceback" not in log.read_text()
    assert not (shared_dir / "runs").exists()


@pytest.mark.slow
def test_job_runs_snapshot_not_working_directory(cluster: Cluster, shared_dir: Path) -> None:
    """The checkout is edited while the job is pending: the run keeps the submitted code."""
    (shared_dir / "slurm_rl").mkdir()
    (shared_dir / "slurm_rl" / "__init__.py").write_text("raise RuntimeError('the working directory')")
    done = cli(cluster, ROOT, "run-in-job", "--print-template")
    assert done.stdout == TEMPLATE.read_text()
    script = shared_dir / "job.sbatch"
    # Like the installed command, which is not imported from the working directory.
    script.write_text(done.stdout.replace("python -m slurm_rl", "python -P -m slurm_rl"))
    job = sbatch(cluster, shared_dir, "-N2", "--mem=2G", str(script), *overrides(shared_dir))
    run = shared_dir / "runs" / f"plain-{job}"
    wait_for_step(run)
    finish(run)
