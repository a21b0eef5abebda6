from collections.abc import Mapping

import pytest

from slurm_rl.plan.accelerator import AcceleratorKind, EnvVar, accelerator_env, merge_env, ray_env
from tests.plans import plan_of

KINDS: list[AcceleratorKind] = ["nvidia", "amd", "cpu"]


def as_dict(env: list[EnvVar]) -> Mapping[str, str]:
    return {var.name: var.value for var in env}


@pytest.mark.parametrize("env", [*map(accelerator_env, KINDS), ray_env(1), ray_env(1000)])
def test_variables_are_unique_and_have_reasons(env: list[EnvVar]) -> None:
    assert len(as_dict(env)) == len(env)
    assert all(var.reason and var.value for var in env)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_do_not_configure_fabric(kind: AcceleratorKind) -> None:
    assert not [var.name for var in accelerator_env(kind) if "IFNAME" in var.name or "_IB_" in var.name]


def test_network_interface_is_set_for_gloo_and_nccl() -> None:
    for kind in ("nvidia", "amd"):
        env = as_dict(accelerator_env(kind, network_interface="ib0"))  # type: ignore[arg-type]
        assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "ib0"
    env = as_dict(accelerator_env("cpu", network_interface="eth0"))
    assert env["GLOO_SOCKET_IFNAME"] == "eth0" and "NCCL_SOCKET_IFNAME" not in env


@pytest.mark.parametrize("kind", ["nvidia", "amd"])
def test_flight_recorder_writes_to_trace_dir(kind: AcceleratorKind) -> None:
    env = as_dict(accelerator_env(kind, trace_dir="/run/x/attempts/0"))
    assert env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/run/x/attempts/0/nccl_trace_rank_"
    assert env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000" and env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


def test_ray_env_scales_with_nodes() -> None:
    small, large, huge = (as_dict(ray_env(num_nodes)) for num_nodes in (4, 64, 1000))
    assert small["RAY_worker_register_timeout_seconds"] == "120"
    assert "RAY_health_check_period_ms" not in small
    assert large["RAY_gcs_server_rpc_server_thread_num"] == "32"
    assert huge["RAY_gcs_server_rpc_server_thread_num"] == "64"


def test_merge_env_overrides_and_removes() -> None:
    base = [EnvVar("A", "1", "x"), EnvVar("B", "2", "y")]
    merged = merge_env(base, {"A": "5", "B": None, "C": "", "GONE": None})
    assert as_dict(merged) == {"A": "5", "C": ""}
    assert merged[0].reason == "set by the user"
    assert base[0].value == "1"


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer", "podman", "docker"])
def test_caches_in_containers_outlive_requeues(runtime: str) -> None:
    image = [f"container.runtime={runtime}", "container.image=/images/rl.sif"]
    own = "+cluster.env.TRITON_CACHE_DIR=/scratch/triton"
    plan = plan_of("+cluster=nvidia_h100", *image, own, run_dir="/runs/a")
    caches = {
        name: value for name, value in plan.env.items() if "CACHE_" in name or name == "FLASHINFER_WORKSPACE_BASE"
    }
    assert caches.pop("TRITON_CACHE_DIR") == "/scratch/triton"
    assert set(caches) == {
        *("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
    }
    assert all(value.startswith("/runs/a/cache") for value in caches.values())
    on_cpu = plan_of("+cluster=slurm_cpu", *image, run_dir="/runs/a").env
    assert on_cpu["XDG_CACHE_HOME"] == "/runs/a/cache" and "VLLM_CACHE_ROOT" not in on_cpu
    assert "XDG_CACHE_HOME" not in plan_of("+cluster=nvidia_h100", run_dir="/runs/a").env
