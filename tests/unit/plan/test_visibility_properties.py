"""Properties of GPU masks: processes of a job see its GPUs, in order, and no others.

`seen` models the vendors' libraries; https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from ray._private.label_utils import parse_node_labels_string

from slurm_rl.errors import BringUpError
from slurm_rl.node.ray_cluster import parse_gpu_labels, render_gpu_labels
from slurm_rl.plan.visibility import MASK_VARIABLES, gpu_names, normalise_gpu_visibility
from slurm_rl.workers.ray_driver import Cluster
from slurm_rl.workers.ray_nodes import OwnRayNodes

CUDA, ROCR, HIP, ORDINAL = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"
UUIDS = [f"GPU-{0x8932F937D72CEA2C + place:016x}" for place in range(8)]
NAMES = {
    "index": [str(place) for place in range(8)],
    "UUID": [f"GPU-8932f937-d72c-4106-c12f-20bd9faed9f{place}" for place in range(8)],
    "MIG": [f"MIG-c7384736-a75d-5afc-978f-d2f1294409f{place}" for place in range(8)],
    "older MIG": [f"MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/{place}/0" for place in range(8)],
}
subsets = st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=8)


def seen(env: Mapping[str, str], uuids: list[str]) -> list[int]:
    """Return the devices of an AMD node that a process with these masks sees, in its order."""
    devices = list(range(len(uuids)))
    if ROCR in env:
        devices = [uuids.index(name) if name.startswith("GPU-") else int(name) for name in env[ROCR].split(",")]
    inner = next((env[name] for name in (HIP, CUDA, ORDINAL) if name in env), None)
    return devices if inner is None else [devices[int(place)] for place in inner.split(",")]


@given(st.data(), st.sampled_from(sorted(NAMES)), subsets)
def test_nvidia_actors_see_gpus_of_job_in_order(data: st.DataObject, kind: str, places: list[int]) -> None:
    names = [NAMES[kind][place] for place in places]
    expected = data.draw(st.integers(1, len(names)))
    others = data.draw(st.dictionaries(st.sampled_from([ROCR, HIP, ORDINAL]), st.just(",".join(names))))
    env = {CUDA: ",".join(names), "SLURM_GPUS_ON_NODE": str(len(names)), **others}
    after = normalise_gpu_visibility(env, "nvidia", expected).apply(env)
    assert gpu_names(after, "nvidia", expected) == names[:expected]
    assert not {ROCR, HIP, ORDINAL} & set(after)
    assert normalise_gpu_visibility(after, "nvidia", expected).apply(after) == after


@given(st.data(), subsets, st.booleans())
def test_amd_nested_masks_become_equivalent_one(data: st.DataObject, outer: list[int], known: bool) -> None:
    """Indices, UUIDs or both, with a second mask within the first or equal to it."""
    named = [data.draw(st.sampled_from([str(place), UUIDS[place]])) for place in outer]
    env = data.draw(st.sampled_from([{}, {ROCR: ",".join(named)}]))
    size = len(outer) if env else 8
    inner = data.draw(st.none() | st.lists(st.integers(0, size - 1), unique=True, min_size=1))
    if inner is not None:
        text = ",".join(map(str, inner))
        assume(text != env.get(ROCR))  # the same mask twice
        env = {**env, data.draw(st.sampled_from([HIP, CUDA, ORDINAL])): text}
    before = seen(env, UUIDS)
    expected = data.draw(st.integers(1, len(before)))
    after = normalise_gpu_visibility(env, "amd", expected, UUIDS if known else ()).apply(env)
    assert seen(after, UUIDS) == before[:expected]
    assert HIP in after, "Ray refuses only ROCR"
    assert CUDA not in after, "vLLM refuses a mask that differs from HIP's"
    if known:
        assert gpu_names(after, "amd", expected) == [str(place) for place in before[:expected]]
    assert normalise_gpu_visibility(after, "amd", expected, UUIDS if known else ()).apply(after) == after


@given(subsets, st.permutations(range(8)), st.sampled_from(["UUIDs", "of the node", "from 0"]))
def test_amd_part_of_node_is_indexed_from_0(places: list[int], order: list[int], kind: str) -> None:
    """The device cgroup shows only the task's devices."""
    own = [UUIDS[place] for place in sorted(places)]
    wanted = [place for place in order if place in places] if kind == "UUIDs" else sorted(places)
    text = {
        "UUIDs": ",".join(UUIDS[place] for place in wanted),
        "of the node": ",".join(map(str, wanted)),
        "from 0": ",".join(map(str, range(len(own)))),
    }[kind]
    env = {ROCR: text, CUDA: text}
    after = normalise_gpu_visibility(env, "amd", len(own), own).apply(env)
    assert sorted(seen(after, own)) == list(range(len(own)))
    if kind == "UUIDs":
        assert [own[place] for place in seen(after, own)] == text.split(",")


@given(st.sampled_from(["nvidia", "amd"]), st.sampled_from(sorted(NAMES)), st.data())
def test_actors_of_two_jobs_on_node_share_no_gpu(vendor: Any, kind: str, data: st.DataObject) -> None:
    """From Slurm's mask through agent, Ray labels and driver to the mask of each actor."""
    names = NAMES[kind if vendor == "nvidia" else "index"]
    order = data.draw(st.permutations(range(8)))
    cut = data.draw(st.integers(1, 7))
    masks: list[str] = []
    for places in (order[:cut], order[cut:]):
        env = {CUDA if vendor == "nvidia" else ROCR: ",".join(names[place] for place in places)}
        expected = data.draw(st.integers(1, len(places)))
        after = normalise_gpu_visibility(env, vendor, expected).apply(env)
        labels = parse_node_labels_string(render_gpu_labels(gpu_names(after, vendor, expected)))
        nodes = OwnRayNodes(SimpleNamespace())  # type: ignore[arg-type]
        nodes.gpus = [parse_gpu_labels(labels)]
        cluster: Any = SimpleNamespace(plan=SimpleNamespace(accelerator=vendor), nodes=nodes)
        for gpu in range(expected):
            actor: Any = SimpleNamespace(node=0, gpus=[gpu])
            [(variable, mask)] = Cluster._visible_gpus(cluster, actor).items()
            assert variable == MASK_VARIABLES[vendor] and mask == names[places[gpu]]
            masks.append(mask)
    assert len(set(masks)) == len(masks)


@given(st.sampled_from(["nvidia", "amd"]), subsets, st.integers(1, 8))
def test_fewer_gpus_than_planned_are_counted_in_error(vendor: Any, places: list[int], more: int) -> None:
    env = {CUDA if vendor == "nvidia" else ROCR: ",".join(map(str, places))}
    with pytest.raises(BringUpError, match=f"got {len(places)} GPUs"):
        normalise_gpu_visibility(env, vendor, len(places) + more)
