import csv
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slurm_rl.config.container import ContainerConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.container import ContainerPlan, Mount, Wrapped, render_bind, wrap
from slurm_rl.plan.container.runtimes import SLURM_NAMES
from slurm_rl.plan.step import StepPart, build_nodes_step, wrap_agent, wrap_checks

ARGV = ("python", "-m", "slurm_rl.node.agent")
ENV = {"NCCL_DEBUG": "WARN", "B": "a value, with 'quotes' $(id)\n"}
RUN_DIR = Mount("/shared/runs/1", "/shared/runs/1")
SECRET = "WANDB_API_KEY"

PLAN = ContainerPlan(
    runtime="none",
    image="/images/rl.img",
    mounts=(Mount("/data/sets", "/data", read_only=True),),
    workdir="/work",
    shm_size_gb=None,
    writable=True,
    extra_args=("--site-option=1",),
)
NAMES = tuple(f"--env={name}" for name in sorted({*ENV, SECRET, *SLURM_NAMES}))
BINDS = (
    "--mount=type=bind,source=/shared/runs/1,target=/shared/runs/1",
    "--mount=type=bind,source=/data/sets,target=/data,readonly",
)
RUN = ("--rm", "--name=job-7", "--network=host", "--ipc=host", "--log-driver=none")
TAIL = ("--workdir=/work", "--entrypoint=", "--site-option=1", "/images/rl.img", *ARGV)
APPTAINER_TAIL = (
    "--writable-tmpfs",
    "--mount=type=bind,source=/shared/runs/1,target=/shared/runs/1",
    "--mount=type=bind,source=/data/sets,target=/data,ro",
    "--pwd",
    "/work",
    "--site-option=1",
    "/images/rl.img",
    *ARGV,
)
PYXIS = (
    "--container-image=/images/rl.img",
    "--no-container-mount-home",
    "--no-container-entrypoint",
    "--container-writable",
    "--container-mounts=/shared/runs/1:/shared/runs/1,/data/sets:/data:ro",
    "--container-workdir=/work",
    "--container-env=NCCL_DEBUG,WANDB_API_KEY",
    "--site-option=1",
)

ARGVS = {
    "none": ARGV,
    "pyxis": ARGV,
    "apptainer": ("apptainer", "exec", "--no-home", *APPTAINER_TAIL),
    "podman": ("podman", "run", *RUN, "--user=0:0", *BINDS, *NAMES, *TAIL),
    "docker": ("docker", "run", *RUN, "--user=0:0", *BINDS, *NAMES, *TAIL),
}
"""Runtime -> argv without a GPU."""
GPU_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("apptainer", "nvidia"): ("--nv",),
    ("apptainer", "amd"): ("--rocm",),
    ("podman", "nvidia"): ("--device=nvidia.com/gpu=all", "--ulimit=host"),
    ("podman", "amd"): ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups", "--ulimit=host"),
    ("docker", "nvidia"): ("--gpus=all", "--ulimit=memlock=-1"),
    ("docker", "amd"): ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=video", "--ulimit=memlock=-1"),
}
CASES = [(runtime, accelerator) for runtime in RUNTIMES for accelerator in ("nvidia", "amd", "cpu")]


def wrapped(runtime: str, accelerator: Any = "cpu", **changes: Any) -> Wrapped:
    user, rdma = changes.pop("user", None), changes.pop("rdma", False)
    plan = replace(PLAN, runtime=runtime, **changes)
    return wrap(
        ARGV, ENV, [RUN_DIR], plan, accelerator=accelerator, name="job-7", inherited=[SECRET], user=user, rdma=rdma
    )


@pytest.mark.parametrize(("runtime", "accelerator"), CASES)
def test_wrap_equals_expected_argv(runtime: str, accelerator: str) -> None:
    result, more = wrapped(runtime, accelerator), GPU_WORDS.get((runtime, accelerator), ())
    assert result.srun_args == (PYXIS if runtime == "pyxis" else ())
    assert tuple(word for word in result.argv if word not in more) == ARGVS[runtime]
    assert set(more) <= set(result.argv)


@pytest.mark.parametrize(("runtime", "accelerator"), CASES)
def test_argv_has_no_values_of_variables_and_no_privileges(runtime: str, accelerator: str) -> None:
    result = wrapped(runtime, accelerator)
    words = [*result.srun_args, *result.argv]
    assert not [word for word in words if any(value in word for value in ENV.values())]
    assert not [word for word in words if "privileged" in word or "cap-add" in word or "security-opt" in word]
    assert result.env.items() >= ENV.items() and SECRET not in result.env


def test_apptainer_overrides_variables_of_image() -> None:
    assert wrapped("apptainer").env["APPTAINERENV_NCCL_DEBUG"] == "WARN"


def test_cleanup_ends_only_its_container() -> None:
    assert wrapped("podman").cleanup_argv == ("podman", "rm", "--force", "--ignore", "--time=10", "job-7")
    assert wrapped("docker").cleanup_argv == ("docker", "rm", "--force", "job-7")
    assert wrapped("pyxis").cleanup_argv == wrapped("apptainer").cleanup_argv == ()


def test_wrap_with_read_only_image() -> None:
    assert "--container-readonly" in wrapped("pyxis", writable=False).srun_args
    assert "--writable-tmpfs" not in wrapped("apptainer", writable=False).argv
    assert {"--read-only", "--env=HOME=/home/slurm_rl"} <= set(wrapped("podman", writable=False).argv)
    assert {"--read-only", "--tmpfs=/tmp"} <= set(wrapped("docker", writable=False).argv)
    # A mount of /tmp replaces the tmpfs.
    assert "--tmpfs=/tmp" not in wrapped("docker", writable=False, mounts=(Mount("/tmp", "/tmp"),)).argv


@pytest.mark.parametrize("accelerator", ["nvidia", "amd"])
@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_wrap_exposes_existing_rdma_devices(runtime: str, accelerator: str, tmp_path: Path) -> None:
    """Missing devices are refused by the runtimes, so only existing ones are named."""
    shell, option, script, *argv = wrapped(runtime, accelerator, rdma=True).argv
    assert argv == [runtime, *wrapped(runtime, accelerator).argv[2:]]
    devices = tmp_path / "infiniband"
    echo = ["/bin/echo" if word == runtime else word for word in argv]

    def run() -> str:
        words = [shell, option, script.replace("/dev/infiniband", str(devices)), *echo]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    plain = " ".join(argv[1:])
    assert run() == f"run {plain}\n"
    devices.mkdir()
    assert run() == f"run {plain}\n"  # the module is loaded, no card is present
    (devices / "uverbs0").touch()
    assert run() == f"run --device={devices} {plain}\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_rdma_changes_only_podman_and_docker_with_gpus(runtime: str) -> None:
    assert wrapped(runtime, "cpu", rdma=True) == wrapped(runtime, "cpu")
    if runtime not in {"podman", "docker"}:
        assert wrapped(runtime, "nvidia", rdma=True) == wrapped(runtime, "nvidia")


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_agents_of_several_nodes_get_rdma_devices(num_nodes: int) -> None:
    words = ["+exp=demo", "+cluster=nvidia_h100", "container.runtime=podman", "container.image=i:1"]
    config = load_config([*words, f"cluster.num_nodes={num_nodes}"])
    plan = build_plan(config, "/runs/a", SubmitFacts("/env/bin/python", 2, "1"))
    assert ("/dev/infiniband" in " ".join(wrap_agent(plan, 1, "1", None).argv)) == (num_nodes > 1)


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_shm_size_replaces_host_ipc(runtime: str) -> None:
    argv = wrapped(runtime, shm_size_gb=16).argv
    assert "--shm-size=16g" in argv and "--ipc=host" not in argv


def test_docker_runs_as_caller_and_podman_as_root_of_its_namespace() -> None:
    assert "--user=1000:100" in wrapped("docker", user=(1000, 100)).argv
    assert "--user=0:0" in wrapped("podman", user=(1000, 100)).argv


def test_pyxis_without_mounts_and_workdir() -> None:
    plan = replace(PLAN, runtime="pyxis", mounts=(), workdir=None, extra_args=())
    result = wrap(ARGV, {}, [], plan, accelerator="cpu", name="x")
    assert result.srun_args == PYXIS[:4]


ODD = Mount('/a b:c,d"e', "/x y:z", read_only=True)
ODD_BIND = '--mount=type=bind,"source=/a b:c,d""e",target=/x y:z,'


@pytest.mark.parametrize("accelerator", ["nvidia", "amd", "cpu"])
@pytest.mark.parametrize(("runtime", "word"), [("podman", "readonly"), ("docker", "readonly"), ("apptainer", "ro")])
def test_mounts_with_separators_are_quoted(runtime: str, word: str, accelerator: str) -> None:
    for mount, expected in ((ODD, ODD_BIND + word), (replace(ODD, read_only=False), ODD_BIND[:-1])):
        argv = wrapped(runtime, accelerator, mounts=(mount,)).argv
        assert [item for item in argv if item.startswith("--mount")] == [BINDS[0], expected]


@pytest.mark.parametrize("path", ["/a b", "/a,b", "/a:b", "/a\\b", "/a\tb"])
def test_pyxis_refuses_paths_with_separators(path: str) -> None:
    for mount in (Mount(path, "/x"), Mount("/x", path)):
        with pytest.raises(ConfigError, match="pyxis mounts only paths without"):
            wrapped("pyxis", mounts=(mount,))


# All paths that the config accepts, with many separators.
PATHS = (
    st.text(st.one_of(st.sampled_from(' ,:"=\\'), st.characters()), min_size=1).filter(str.isprintable).map("/".__add__)
)


@given(source=PATHS, target=PATHS)
def test_render_bind_parses_as_csv(source: str, target: str) -> None:
    line = render_bind(Mount(source, target, read_only=True), "ro")
    assert next(csv.reader([line], strict=True)) == ["type=bind", f"source={source}", f"target={target}", "ro"]


def test_equal_mounts_merge_and_conflicting_ones_are_refused() -> None:
    argv = wrapped("podman", mounts=(RUN_DIR,)).argv
    assert len([word for word in argv if word.startswith("--mount")]) == 1
    with pytest.raises(ConfigError, match="/shared/runs/1 and /home/me both on"):
        wrapped("podman", mounts=(Mount("/home/me", RUN_DIR.target),))


def test_container_plan_round_trips_through_json() -> None:
    config = ContainerConfig(
        runtime="podman",
        image="localhost/rl:1",
        mounts=["/data:/data:ro", "/scratch", {"source": "/a:b", "target": "/c"}],  # type: ignore[arg-type]
        extra_args=("--device=/dev/infiniband",),
    )
    plan = ContainerPlan.from_json(json.loads(json.dumps(config.model_dump(mode="json"))))
    assert plan.mounts == (Mount("/data", "/data", True), Mount("/scratch", "/scratch"), Mount("/a:b", "/c"))
    assert plan.image == "localhost/rl:1" and plan.extra_args == ("--device=/dev/infiniband",)
    assert ContainerPlan.from_json(json.loads(json.dumps(asdict(plan)))) == plan


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"runtime": "podman"}, "go together"),
        ({"image": "x.sif"}, "go together"),
        ({"runtime": "podman", "image": "--privileged"}, "reads as an option"),
        ({"runtime": "pyxis", "image": "x", "shm_size_gb": 1}, "for podman and docker"),
        ({"runtime": "docker", "image": "x", "workdir": "work"}, "absolute path"),
        ({"runtime": "docker", "image": "x", "mounts": ["data:/data"]}, "source of a mount is an absolute path"),
        ({"runtime": "docker", "image": "x", "mounts": ["/data:data"]}, "target of a mount is an absolute path"),
        ({"runtime": "docker", "image": "x", "mounts": ["/a:/b:rx"]}, "paths with a colon"),
        ({"runtime": "docker", "image": "x", "mounts": ["/a:/b:/c:ro"]}, "paths with a colon"),
        ({"runtime": "docker", "image": "x", "mounts": ["/a\n:/b"]}, "control character"),
        ({"runtime": "kubernetes", "image": "x"}, "runtime"),
        ({"privileged": True}, "privileged"),
    ],
)
def test_container_config_refuses_invalid_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ContainerConfig(**values)


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "podman", "docker"])
def test_container_setup_runs_inside_container(runtime: str) -> None:
    container = replace(PLAN, runtime=runtime, setup=("source /opt/env",))
    wrapped = wrap(["python", "x.py"], {}, [], container, accelerator="cpu", name="a")
    assert wrapped.argv[-3:-1] == ("/bin/sh", "-c")
    assert "{ source /opt/env\n} ||" in wrapped.argv[-1] and wrapped.argv[-1].endswith("exec python x.py")


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "podman", "docker"])
def test_tmp_root_of_node_is_mounted(runtime: str) -> None:
    """A mount of the user takes precedence."""
    words = ["+exp=demo", "+cluster=slurm_cpu", f"container.runtime={runtime}", "container.image=/i.sqsh"]
    for more, seen in (("cluster.tmp_root=/scratch", "/scratch"), ("container.mounts=[/disk:/tmp]", "/disk")):
        plan = build_plan(load_config([*words, more]), "/scratch/runs/a", SubmitFacts("/env/bin/python", 2, "1"))
        for agent in (wrap_agent(plan, 1, "7", None), wrap_checks(plan, ["true"], plan.run_dir, "x", None)):
            text = " ".join([*agent.srun_args, *agent.argv])
            assert (
                f"{seen}:{plan.tmp_root}" if runtime == "pyxis" else f"source={seen},target={plan.tmp_root}"
            ) in text
            # Paths below it are mounted later.
            assert text.index("/scratch/runs/a") > text.index(seen) or seen == "/disk"
            assert text.count("/tmp") == (seen == "/disk")


def test_cluster_setup_does_not_run_inside_pyxis() -> None:
    """srun starts the container, so a shell would run inside."""
    words = [
        "+exp=demo",
        "+cluster=slurm_cpu",
        'cluster.setup=["module load x"]',
        "container.runtime=pyxis",
        "container.image=/i.sqsh",
    ]
    for runtime, count in (("pyxis", 0), ("apptainer", 1)):
        config = load_config([*words, f"container.runtime={runtime}"])
        plan = build_plan(config, "/runs/a", SubmitFacts("/env/bin/python", 2, "1"))
        step = build_nodes_step(plan, [StepPart(["n1"])], "/logs", wrap_agent(plan, 1, "7", None))
        assert " ".join(step).count("{ module load x") == count
