"""Which GPUs a node's processes see: one mask, normalised before any Python that could import torch or ray.

NVIDIA has one mask, CUDA_VISIBLE_DEVICES. AMD has several, and they compose: ROCR_VISIBLE_DEVICES hides
devices from the runtime, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) counts within what is left.
Slurm sets ROCR, often all of them to the same text; Ray wants HIP and refuses to start when only ROCR is
there; HIP reads its mask when it is first imported. So all of them become one HIP mask:

    >>> change = normalise_gpu_visibility({"ROCR_VISIBLE_DEVICES": "4,5"}, "amd", 2)
    >>> change.unset, change.set["HIP_VISIBLE_DEVICES"]
    (('ROCR_VISIBLE_DEVICES',), '4,5')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_rl.errors import BringUpError
from slurm_rl.plan.accelerator import NOSET_FLAGS, AcceleratorKind

_CUDA, _ROCR, _HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
_ORDINAL, _ZE = "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"
_MASKS = (_CUDA, _ROCR, _HIP, _ORDINAL, _ZE)
MASK_VARIABLES: dict[AcceleratorKind, str] = {"nvidia": _CUDA, "amd": _HIP}
"""The one mask that counts once the others are gone."""


@dataclass(frozen=True)
class VisibilityChange:
    """What to do to the environment."""

    unset: tuple[str, ...]
    set: dict[str, str]

    def apply(self, env: Mapping[str, str]) -> dict[str, str]:
        """The environment after the change."""
        return {name: value for name, value in env.items() if name not in self.unset} | self.set


def normalise_gpu_visibility(
    env: Mapping[str, str],
    vendor: AcceleratorKind,
    num_gpus_expected: int,
    device_uuids: Sequence[str] = (),
) -> VisibilityChange:
    """One mask with exactly the expected number of GPUs.

    Args:
        env: of the task, as Slurm made it.
        vendor: cpu changes nothing.
        num_gpus_expected: what the plan gives this node; GPUs beyond it are hidden.
        device_uuids: on AMD, of the devices that this task may open, in their order (`parse_kfd_device`).

    Raises:
        BringUpError: the node shows fewer GPUs, or masks that contradict each other.
    """
    if vendor == "cpu":
        return VisibilityChange((), {})
    if vendor == "nvidia":
        return _normalise_nvidia(env, num_gpus_expected)
    return _normalise_amd(env, num_gpus_expected, device_uuids)


def gpu_names(env: Mapping[str, str], vendor: AcceleratorKind, num_gpus: int) -> list[str]:
    """What an environment that is normalised calls its GPUs: an actor's mask is made of these, not of their places.

    >>> gpu_names({"CUDA_VISIBLE_DEVICES": "4,GPU-8932f937"}, "nvidia", 2), gpu_names({}, "amd", 2)
    (['4', 'GPU-8932f937'], ['0', '1'])
    """
    mask = None if vendor == "cpu" else _parse_mask(env.get(MASK_VARIABLES[vendor]))
    return [str(index) for index in range(num_gpus)] if mask is None else mask[:num_gpus]


def parse_kfd_device(properties: str) -> tuple[str, str] | None:
    """The UUID by which ROCR knows a device and the number of its render node, from the text of
    /sys/class/kfd/kfd/topology/nodes/<n>/properties.

    None for a CPU, which has its node there too.
    """
    fields = dict(line.split(maxsplit=1) for line in properties.splitlines() if len(line.split()) == 2)
    if int(fields.get("simd_count", "0")) == 0:
        return None
    return f"GPU-{int(fields.get('unique_id', '0')):016x}", fields.get("drm_render_minor", "")


def _normalise_nvidia(env: Mapping[str, str], expected: int) -> VisibilityChange:
    # Slurm without gres flags sets the other vendors' masks too; Ray's AMD code trips over a lone ROCR.
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
        # UUIDs of unknown order: ROCR keeps them, and HIP counts within what they leave.
        change |= {_ROCR: ",".join(ids), _HIP: ",".join(map(str, range(expected)))}
    else:
        change |= {_HIP: ",".join(map(str, indices))}
    unset = tuple(name for name in _present(env, _MASKS) if name not in change)
    return VisibilityChange(unset, change)


def _compose_amd_masks(env: Mapping[str, str]) -> list[str] | None:
    """The devices that all masks together leave, named as ROCR names them; None without any mask."""
    outer = _parse_mask(env.get(_ROCR))
    # HIP itself looks at them in this order.
    inner = next((ids for name in (_HIP, _CUDA, _ORDINAL) if (ids := _parse_mask(env.get(name))) is not None), None)
    # The same text twice is Slurm saying one thing in two variables, not a mask within a mask.
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
    """The ids as positions among the devices of this task; None when there are UUIDs and no list to find them in."""
    if all(device.isdigit() for device in ids):
        indices = [int(device) for device in ids]
        if not device_uuids or all(index < len(device_uuids) for index in indices):
            return indices
        if len(indices) == len(device_uuids):
            # Numbers of the whole node, while the device cgroup shows this task its own devices only.
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
    """The ids of a mask; None when it is not set. Like CUDA and HIP, stops at the first -1."""
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
            f"this node must show the {expected} GPUs that the plan gives it",
            seen=f"{len(set(ids))} GPUs ({_describe(env)})",
            action="compare the job's GPUs per node with the node's (`scontrol show node`), and with what the "
            "container was given",
        )


def _describe(env: Mapping[str, str]) -> str:
    shown = [f"{name}={env[name]}" for name in (*_MASKS, "SLURM_GPUS_ON_NODE") if name in env]
    return " ".join(shown) or "no mask set"


def _present(env: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in env)
