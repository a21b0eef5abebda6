import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import attach
from slurm_rl.node.ports import derive_port_block
from slurm_rl.node.ray_cluster import build_ray_start_argv
from slurm_rl.node.rendezvous import HeadRecord, publish_head
from slurm_rl.plan.attach import build_attach
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, write_json
from slurm_rl.run_dir.run_secret import create_token
from tests.plans import plan_of

PORTS = derive_port_block("77", 1, 0)
ENV = {"RAY_ADDRESS": "10.0.0.1:10200", "RAY_AUTH_TOKEN_PATH": "/run/secrets/ray-token-1"}


def ray_start(plan: JobPlan) -> list[str]:
    tmp_dir = Path("/tmp/x")
    return build_ray_start_argv(
        plan, rank=0, ip="10.0.0.1", num_cpus=2, gpus=[], ports=PORTS, tmp_dir=tmp_dir, head=None
    )


def shell_in(runtime: str, image: str) -> list[str]:
    words = ["+cluster=nvidia_h100", f"container.runtime={runtime}", f"container.image={image}"]
    plan = plan_of(*words, run_dir="/runs/a b")
    found = build_attach(plan, ["/bin/bash"], job_key="77", attempt=2, host="n3", env=ENV, pid=4242, user=(1000, 1000))
    assert found.env["RAY_ADDRESS"] == ENV["RAY_ADDRESS"]
    assert not any(ENV["RAY_ADDRESS"] in word for word in found.argv), "values stand in no argv"
    start = ["srun", "--jobid=77", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=n3", "--mem=0", "--mpi=none"]
    assert found.argv[: len(start) + 1] == [*start, "--pty"]
    return found.argv[len(start) + 1 :]


def test_shell_without_container_is_overlapping_step() -> None:
    found = build_attach(plan_of("+cluster=nvidia_h100"), ["bash"], job_key="77", attempt=1, host="n0", pid=1, env={})
    assert found.argv[-1] == "bash" and "--overlap" in found.argv
    assert found.env["PYTHONPATH"] == "/runs/a/code"


def test_shell_enters_container_by_name_or_opens_image_with_mounts() -> None:
    for runtime in ("podman", "docker"):
        argv = shell_in(runtime, "registry.example/rl:1")
        assert argv[:2] == [runtime, "exec"] and argv[-2:] == ["srl-77-2", "/bin/bash"]
        assert "--env=RAY_ADDRESS" in argv
    argv = shell_in("apptainer", "/images/rl.sif")
    assert argv[:2] == ["apptainer", "exec"] and argv[-2:] == ["/images/rl.sif", "/bin/bash"]
    assert any("/runs/a b" in word for word in argv)


def test_shell_under_pyxis_enters_container_by_process() -> None:
    """A second container would be unpacked again and have another /tmp. Line breaks in values define no variables."""
    env = ENV | {"SCRIPT": "a\nLD_PRELOAD=b"}
    plan = plan_of("+cluster=nvidia_h100", "container.runtime=pyxis", "container.image=/i.sqsh", run_dir="/shared/a")
    argv = build_attach(plan, ["bash", "-l"], job_key="77", attempt=1, host="n0", pid=4242, env=env).argv
    assert argv[argv.index("enroot") :][:2] == ["enroot", "exec"] and argv[-3:] == ["4242", "bash", "-l"]
    assert "--env=RAY_ADDRESS" in argv and "--env=SCRIPT" not in argv
    assert not [word for word in argv if word.startswith("--container")]


def test_setup_lines_run_before_shell() -> None:
    plan = plan_of("+cluster=slurm_cpu", "cluster.setup=[\"export A='x y'\"]")
    found = build_attach(plan, ["echo", "a b"], job_key="77", attempt=1, host=None, pid=1, env={}, tty=False)
    assert found.argv[:2] == ["/bin/bash", "-c"]
    assert subprocess.run(found.argv, capture_output=True, text=True).stdout == "a b\n"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunDir]:
    """Return a local run with a live controller."""
    run = RunDir(tmp_path / "run")
    write_json(run.plan, plan_of(run_dir=str(run.path)).to_json())
    attempt = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    write_json(attempt.start, {"job": "local-1-1"})
    write_json(attempt.node(0), {"host": "n0", "pid": 1})
    publish_head(attempt, HeadRecord("n0", "127.0.0.1", PORTS.gcs, 1))
    create_token(run, 1)
    controller = subprocess.Popen(
        [sys.executable, "-c", "input()", str(run.submitit)], stdin=subprocess.PIPE, cwd=tmp_path
    )
    write_json(run.job, {"launcher": "local", "job_id": str(controller.pid)})
    yield run
    assert controller.stdin is not None
    controller.stdin.close()
    controller.wait()


def test_shell_of_local_run_has_its_environment(live: RunDir) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurm_rl", "attach", str(live.path), "--", "sh", "-c", "env"],
        # Slurm's node name may differ from the hostname.
        env={**os.environ, "PYTHONPATH": str(Path(attach.__file__).parents[2]), "SLURMD_NODENAME": "n0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["RAY_ADDRESS"] == f"127.0.0.1:{PORTS.gcs}"
    assert found["RAY_AUTH_TOKEN_PATH"] == str(live.secrets / "ray-token-1")
    assert found["PYTHONPATH"] == str(live.code)
    assert found["TORCHDYNAMO_DISABLE"] == "1"


def test_shell_of_local_run_needs_its_machine_and_known_node(live: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    for node in ("1", "-1"):
        assert main(["attach", f"--node={node}", str(live.path)]) == 2
        assert "rank of a node" in capsys.readouterr().err
    assert main(["attach", str(live.path)]) == 2
    assert "run the same command there: ssh n0" in capsys.readouterr().err


def test_tunnel_of_local_run_needs_no_ssh_from_here(
    live: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n0")
    assert main(["attach", "--dashboard", str(live.path)]) == 0
    output = capsys.readouterr().out
    assert f"http://127.0.0.1:{PORTS.dashboard}" in output
    assert str(live.secrets / "ray-token-1") in output
    assert (live.secrets / "ray-token-1").read_text() not in output
    assert f"--logdir={live.tensorboard}" in output


def test_tunnel_goes_to_head_node(live: RunDir) -> None:
    port = plan_of("+cluster=slurm_cpu", "ray.dashboard_port=8265")
    assert "--dashboard-port=8265" in ray_start(port)
    for plan, number in ((plan_of("+cluster=slurm_cpu"), PORTS.dashboard), (port, 8265)):
        lines = attach.describe_dashboard(live, plan, live.attempt(1), 9000)
        [command] = [line.partition("from here")[2] for line in lines if "from here" in line]
        assert shlex.split(command)[-3:] == ["-L", f"127.0.0.1:9000:127.0.0.1:{number}", "n0"]
    for word in ("+exp=sft_tiny", "ray.dashboard=false"):
        [line] = attach.describe_dashboard(live, plan_of("+cluster=slurm_cpu", word), live.attempt(1), 9000)
        assert line.startswith("dashboard    none")


def test_ended_run_is_refused(live: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(live.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 1})
    for flags in (["--dashboard"], []):
        assert main(["attach", *flags, str(live.path)]) == 2
        assert "must be running" in capsys.readouterr().err


def test_debug_adds_debugger_recorder_and_logs_with_reasons() -> None:
    plan = plan_of("+cluster=amd_mi300", "job.debug=true")
    assert plan.env["RAY_DEBUG_POST_MORTEM"] == "1" and plan.env["NCCL_DEBUG"] == "INFO"
    assert int(plan.env["TORCH_NCCL_TRACE_BUFFER_SIZE"]) > 2000
    added = set(plan.env) - set(plan_of("+cluster=amd_mi300").env)
    assert all(plan.env_reasons[name].startswith("debug: ") for name in added)
    assert "NCCL_DEBUG" not in plan_of("job.debug=true").env, "there is no NCCL on a CPU"
    under_torchrun = plan_of("job.debug=true", "+exp=sft_tiny").env
    assert under_torchrun["PYTHONFAULTHANDLER"] == "1"
    assert not any(name.startswith(("RAY_", "VLLM_")) for name in under_torchrun)


def test_legacy_debugger_is_reachable_from_other_nodes() -> None:
    legacy = plan_of("job.debug=true", "job.debugger=legacy")
    assert legacy.env["RAY_DEBUG"] == "legacy" and "RAY_DEBUG_POST_MORTEM" not in legacy.env
    assert "--ray-debugger-external" in ray_start(legacy)
    assert "--ray-debugger-external" not in ray_start(plan_of("job.debug=true"))
