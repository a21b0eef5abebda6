"""Normalize the GPU masks of a node to one, before torch or ray is imported.

NVIDIA has one mask, CUDA_VISIBLE_DEVICES. AMD has several that compose: ROCR_VISIBLE_DEVICES hides devices from the
runtime, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) indexes the remaining ones. Slurm sets ROCR, often all of
them to the same text; Ray needs HIP and refuses to start with only ROCR; HIP reads its mask at import. All of them
become one HIP mask:

    >>> change = normalise_gpu_visibility({"ROCR_VISIBLE_DEVICES": "4,5"}, "amd", 2)
    >>> change.unset, change.set["HIP_VISIBLE_DEVICES"]
    (('ROCR_VISIBLE_DEVICES',), '4,5')
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import BringUpError
from slurm_rl.plan.accelerator import NOSET_FLAGS, AcceleratorKind

_CUDA, _ROCR, _HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_ORDINAL, _ZE = "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"
_MASKS = (_CUDA, _ROCR, _HIP, _ORDINAL, _ZE)
MASK_VARIABLES: dict[AcceleratorKind, str] = {"nvidia": _CUDA, "amd": _HIP}
"""The mask that remains after normalization."""


@dataclass(frozen=True)
class VisibilityChange:
    """Changes of the environment."""

    unset: tuple[str, ...]
    set: dict[str, str]

    def apply(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the changed environment."""
        return {name: value for name, value in env.items() if name not in self.unset} | self.set


def normalise_gpu_visibility(
    env: Mapping[str, str],
    vendor: AcceleratorKind,
    num_gpus_expected: int,
    device_uuids: Sequence[str] = (),
) -> VisibilityChange:
    """Return the change to one mask with exactly the expected number of GPUs.

    Args:
        env: environment of the Slurm task.
        vendor: accelerator; cpu: no change.
        num_gpus_expected: GPUs of this node in the plan; further GPUs are hidden.
        device_uuids: on AMD, devices that this task may open, in order (`parse_kfd_device`).

    Raises:
        BringUpError: the node shows fewer GPUs, or the masks contradict each other.
    """
    if vendor == "cpu":
        return VisibilityChange((), {})
    if vendor == "nvidia":
        return _normalise_nvidia(env, num_gpus_expected)
    return _normalise_amd(env, num_gpus_expected, device_uuids)


def gpu_names(env: Mapping[str, str], vendor: AcceleratorKind, num_gpus: int) -> list[str]:
    """Return the names of the GPUs in a normalized environment, from which masks of actors are built.

    >>> gpu_names({"CUDA_VISIBLE_DEVICES": "4,GPU-8932f937"}, "nvidia", 2), gpu_names({}, "amd", 2)
    (['4', 'GPU-8932f937'], ['0', '1'])
    """
    mask = None if vendor == "cpu" else _parse_mask(env.get(MASK_VARIABLES[vendor]))
    return [str(index) for index in range(num_gpus)] if mask is None else mask[:num_gpus]


def list_visible(env: Mapping[str, str], vendor: AcceleratorKind) -> list[str] | None:
    """Return the devices that the masks of an environment leave; None without a mask.

    >>> list_visible({"CUDA_VISIBLE_DEVICES": "3,5"}, "nvidia"), list_visible({"ROCR_VISIBLE_DEVICES": ""}, "amd")
    (['3', '5'], [])
    """
    return _parse_mask(env.get(_CUDA)) if vendor == "nvidia" else _compose_amd_masks(env)


def parse_kfd_device(properties: str) -> tuple[str, str] | None:
    """Return a device's ROCR UUID and render node number, or None for a CPU.

    Args:
        properties: text of /sys/class/kfd/kfd/topology/nodes/<n>/properties.
    """
    fields = dict(line.split(maxsplit=1) for line in properties.splitlines() if len(line.split()) == 2)
    if int(fields.get("simd_count", "0")) == 0:
        return None
    return f"GPU-{int(fields.get('unique_id', '0')):016x}", fields.get("drm_render_minor", "")


def _normalise_nvidia(env: Mapping[str, str], expected: int) -> VisibilityChange:
    # Slurm without gres flags also sets other vendors' masks; Ray's AMD code fails with only ROCR.
    unset = _present(env, (_ROCR, _HIP, _ORDINAL, _ZE))
    ids = _parse_mask(env.get(_CUDA))
    if ids is None:
        ids = _all_devices(env, expected)
        _check_count(ids, env, expected)
        return VisibilityChange(unset, {} if len(ids) == expected else {_CUDA: ",".join(ids[:expected])})
    _check_count(ids, env, expected)
    return VisibilityChange(unset, {_CUDA: ",".join(ids[:expected])})


def _normalise_amd(env: Mapping[str, str], expected: int, device_uuids: Sequence[str]) -> VisibilityChange:
    ids = _compose_amd_masks(env)
    if ids is None:
        ids = [str(index) for index in range(len(device_uuids))] or _all_devices(env, expected)
    _check_count(ids, env, expected)
    ids = ids[:expected]
    change = {name: "1" for name in NOSET_FLAGS if name not in env}
    indices = _to_indices(ids, device_uuids, env)
    if indices is None:
        # The order of the UUIDs is unknown: keep them in ROCR and index within them in HIP.
        change |= {_ROCR: ",".join(ids), _HIP: ",".join(map(str, range(expected)))}
    else:
        change |= {_HIP: ",".join(map(str, indices))}
    unset = tuple(name for name in _present(env, _MASKS) if name not in change)
    return VisibilityChange(unset, change)


def _compose_amd_masks(env: Mapping[str, str]) -> list[str] | None:
    """Return the devices left by all masks, by ROCR's names; None without a mask."""
    outer = _parse_mask(env.get(_ROCR))
    # HIP reads them in this order.
    inner = next((ids for name in (_HIP, _CUDA, _ORDINAL) if (ids := _parse_mask(env.get(name))) is not None), None)
    # Slurm sets both variables to the same text; that is one mask.
    if outer is None or inner is None or inner == outer:
        return inner if outer is None else outer
    by_name = {str(position): device for position, device in enumerate(outer)} | {
        device: device for device in outer if not device.isdigit()
    }
    unknown = [device for device in inner if device not in by_name]
    if unknown:
        raise BringUpError(
            f"{_HIP} counts within the {len(outer)} devices that {_ROCR} leaves",
            seen=f"{_describe(env)}: {','.join(unknown)} is not among them",
            action=f"unset {_HIP} and {_CUDA} in your setup lines; Slurm's own mask is enough",
        )
    return [by_name[device] for device in inner]


def _to_indices(ids: Sequence[str], device_uuids: Sequence[str], env: Mapping[str, str]) -> list[int] | None:
    """Return the ids as positions among the task's devices; None for UUIDs without a device list."""
    if all(device.isdigit() for device in ids):
        indices = [int(device) for device in ids]
        if not device_uuids or all(index < len(device_uuids) for index in indices):
            return indices
        if len(indices) == len(device_uuids):
            # Node-wide numbers, while the device cgroup shows only this task's devices.
            return list(range(len(indices)))
    elif not device_uuids:
        return None
    positions = {str(position): position for position in range(len(device_uuids))} | {
        uuid.lower(): position for position, uuid in enumerate(device_uuids)
    }
    missing = [device for device in ids if device.lower() not in positions]
    if missing:
        raise BringUpError(
            f"every GPU of the mask must be one of the {len(device_uuids)} that this task may open",
            seen=f"{_describe(env)}: {','.join(missing)} is not",
            action="compare with `rocm-smi --showuniqueid` on the node, and with gres.conf",
        )
    return [positions[device.lower()] for device in ids]


def _parse_mask(text: str | None) -> list[str] | None:
    """Return the ids of a mask up to the first -1, as CUDA and HIP do; None if not set."""
    if text is None:
        return None
    ids: list[str] = []
    for device in text.split(","):
        device = device.strip()
        if not device or device.startswith("-") or device == "NoDevFiles":
            break
        ids.append(device)
    return ids


def _all_devices(env: Mapping[str, str], expected: int) -> list[str]:
    count = env.get("SLURM_GPUS_ON_NODE", "")
    return [str(index) for index in range(int(count) if count.isdigit() else expected)]


def _check_count(ids: Sequence[str], env: Mapping[str, str], expected: int) -> None:
    if len(set(ids)) < expected:
        raise BringUpError(
            f"this node must have the {expected} GPUs that the plan assigns to it",
            seen=f"{len(set(ids))} GPUs ({_describe(env)})",
            action="compare the job's GPUs per node with the node's (`scontrol show node`), and with the container's",
        )


def _describe(env: Mapping[str, str]) -> str:
    shown = [f"{name}={env[name]}" for name in (*_MASKS, "SLURM_GPUS_ON_NODE") if name in env]
    return " ".join(shown) or "no mask set"


def _present(env: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in env)
