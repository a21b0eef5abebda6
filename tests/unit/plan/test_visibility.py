import pytest

from slurm_rl.errors import BringUpError
from slurm_rl.plan.accelerator import NOSET_FLAGS
from slurm_rl.plan.visibility import normalise_gpu_visibility, parse_kfd_device

CUDA, ROCR, HIP, ORDINAL = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"
EIGHT = "0,1,2,3,4,5,6,7"
UUIDS = [f"GPU-{n:016x}" for n in (0x8932F937D72CEA2C, 0xA1, 0xB2, 0xC3)]


def masks_after(env: dict[str, str], vendor: str, expected: int, uuids: list[str] | None = None) -> dict[str, str]:
    change = normalise_gpu_visibility(env, vendor, expected, uuids or [])  # type: ignore[arg-type]
    return {name: value for name, value in change.apply(env).items() if name in (CUDA, ROCR, HIP, ORDINAL)}


@pytest.mark.parametrize(
    ("env", "expected", "hip"),
    [
        pytest.param({}, 8, EIGHT, id="whole node, no mask"),
        pytest.param({"SLURM_GPUS_ON_NODE": "8"}, 8, EIGHT, id="whole node, Slurm's count only"),
        pytest.param({ROCR: EIGHT}, 8, EIGHT, id="whole node, only ROCR (Ray refuses it)"),
        pytest.param({ROCR: EIGHT, CUDA: EIGHT, ORDINAL: EIGHT}, 8, EIGHT, id="whole node, Slurm set all masks"),
        pytest.param({ROCR: EIGHT, HIP: EIGHT, CUDA: EIGHT}, 8, EIGHT, id="whole node, user copied the mask"),
        pytest.param({ROCR: "0,1"}, 2, "0,1", id="subset in a device cgroup: Slurm counts from 0"),
        pytest.param({ROCR: "4,5"}, 2, "4,5", id="subset without device cgroup"),
        pytest.param({ROCR: "4,5", CUDA: "4,5", ORDINAL: "4,5"}, 2, "4,5", id="subset, the same text in all"),
        pytest.param({ROCR: "4,5,6,7", HIP: "0,2"}, 2, "4,6", id="a mask within a mask composes"),
        pytest.param({ROCR: "4,5,6,7", CUDA: "3,1"}, 2, "7,5", id="CUDA counts like HIP"),
        pytest.param({HIP: "2,3", CUDA: "0,1"}, 2, "2,3", id="HIP goes before CUDA"),
        pytest.param({CUDA: "2,3"}, 2, "2,3", id="only CUDA"),
        pytest.param({ORDINAL: "1"}, 1, "1", id="only GPU_DEVICE_ORDINAL"),
        pytest.param({ROCR: EIGHT}, 4, "0,1,2,3", id="more than planned: the rest is hidden"),
        pytest.param({ROCR: " 6, 7 "}, 2, "6,7", id="spaces"),
        pytest.param({HIP: "0,1,-1,2"}, 2, "0,1", id="-1 ends a mask"),
    ],
)
def test_amd_masks_become_one_hip_mask(env: dict[str, str], expected: int, hip: str) -> None:
    assert masks_after(env, "amd", expected) == {HIP: hip}


def test_amd_sets_noset_flags_unless_user_did() -> None:
    change = normalise_gpu_visibility({NOSET_FLAGS[1]: "0"}, "amd", 1)
    assert {name: change.set.get(name) for name in NOSET_FLAGS} == {NOSET_FLAGS[0]: "1", NOSET_FLAGS[1]: None}


def test_amd_uuids_without_device_list_stay_in_rocr() -> None:
    env = {ROCR: f"{UUIDS[2]},{UUIDS[0]}", CUDA: f"{UUIDS[2]},{UUIDS[0]}"}
    assert masks_after(env, "amd", 2) == {ROCR: f"{UUIDS[2]},{UUIDS[0]}", HIP: "0,1"}


def test_amd_contradicting_masks_are_refused() -> None:
    with pytest.raises(BringUpError, match=r"counts within the 2 devices.*7 is not among them"):
        normalise_gpu_visibility({ROCR: "4,5", HIP: "0,7"}, "amd", 2)


def test_amd_uuid_of_other_node_is_refused() -> None:
    with pytest.raises(BringUpError, match="one of the 4 that this task may open"):
        normalise_gpu_visibility({ROCR: "GPU-dead"}, "amd", 1, UUIDS)


@pytest.mark.parametrize(
    ("env", "expected", "after"),
    [
        pytest.param({}, 8, {}, id="whole node, no mask"),
        pytest.param({CUDA: EIGHT}, 8, {CUDA: EIGHT}, id="whole node"),
        pytest.param({CUDA: "4,5"}, 2, {CUDA: "4,5"}, id="subset"),
        pytest.param({CUDA: "0,1", ROCR: "0,1", ORDINAL: "0,1"}, 2, {CUDA: "0,1"}, id="Slurm set all masks"),
        pytest.param({CUDA: "GPU-aa,GPU-bb"}, 2, {CUDA: "GPU-aa,GPU-bb"}, id="UUIDs"),
        pytest.param({CUDA: "MIG-aa"}, 1, {CUDA: "MIG-aa"}, id="MIG"),
        pytest.param({CUDA: EIGHT}, 2, {CUDA: "0,1"}, id="more than planned"),
        pytest.param({"SLURM_GPUS_ON_NODE": "8"}, 4, {CUDA: "0,1,2,3"}, id="more than planned, no mask"),
    ],
)
def test_nvidia_keeps_one_mask(env: dict[str, str], expected: int, after: dict[str, str]) -> None:
    assert masks_after(env, "nvidia", expected) == after


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize(
    "env",
    [
        {CUDA: "0,1"},
        {CUDA: ""},
        {CUDA: "NoDevFiles"},
        {CUDA: "-1"},
        {CUDA: "0,0,0,0"},
        {"SLURM_GPUS_ON_NODE": "2"},
    ],
)
def test_fewer_gpus_than_planned_are_refused_with_both_numbers(vendor: str, env: dict[str, str]) -> None:
    with pytest.raises(BringUpError, match=r"the 4 GPUs .* got [012] GPUs \(.*=.*\)"):
        normalise_gpu_visibility(env, vendor, 4)  # type: ignore[arg-type]


def test_cpu_changes_nothing() -> None:
    change = normalise_gpu_visibility({CUDA: "0", ROCR: "1"}, "cpu", 0)
    assert (change.unset, change.set) == ((), {})


def test_parse_kfd_device_returns_rocr_uuid() -> None:
    gpu = "cpu_cores_count 0\nsimd_count 304\ngfx_target_version 90402\nunique_id 9886229297379732012\n"
    gpu += "drm_render_minor 129\n"
    assert parse_kfd_device(gpu) == (f"GPU-{9886229297379732012:016x}", "129")
    assert parse_kfd_device("cpu_cores_count 96\nsimd_count 0\nunique_id 0\n") is None
