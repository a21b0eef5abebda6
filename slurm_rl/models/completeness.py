"""Check that tensors are a whole model; errors name missing and unknown ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from slurm_rl.errors import ConfigError, SlurmRLError

_SHOWN_NAMES = 4


def require_complete(
    error: type[SlurmRLError],
    rule: str,
    *,
    missing: Collection[str] = (),
    unknown: Collection[str] = (),
    reshaped: Collection[str] = (),
    seen: str,
    action: str,
) -> None:
    """Raise `error` if a tensor of the model is missing, unknown to it, or of another shape."""
    misfits = {"missing": missing, "not of this model": unknown, "of another shape": reshaped}
    found = [f"{len(names)} {kind}: {_shorten(sorted(names))}" for kind, names in misfits.items() if names]
    if found:
        raise error(f"{rule} ({'; '.join(found)})", seen=seen, action=action)


def require_fit(loaded: Mapping[str, Any], field: str, seen: str) -> None:
    """Raise ConfigError unless transformers found each tensor of the model, and no others.

    Args:
        loaded: `output_loading_info` of `from_pretrained`.
        field: config key of the weights.
    """
    require_complete(
        ConfigError,
        f"the weights of {field} must be those of the model's architecture",
        missing=loaded["missing_keys"],
        unknown=loaded["unexpected_keys"],
        reshaped=[f"{name} {list(found)} for {list(wanted)}" for name, found, wanted in loaded["mismatched_keys"]],
        seen=seen,
        action=f"point {field} at weights of the same architecture and size",
    )


def check_complete(
    tensors: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, Sequence[int]],
    error: type[SlurmRLError],
    rule: str,
    *,
    seen: str,
    action: str,
) -> Iterator[tuple[str, Tensor]]:
    """Yield `tensors`, and after the last one raise `error` unless they are those of `shapes`, each once.

    The error comes last because other ranks take part in gathering each tensor.
    """
    left, unknown, reshaped = dict(shapes), [], []
    for name, tensor in tensors:
        shape = left.pop(name, None)
        if shape is None:
            unknown.append(name)
        elif tuple(shape) != tuple(tensor.shape):
            reshaped.append(f"{name} {list(tensor.shape)} for {list(shape)}")
        yield name, tensor
    require_complete(error, rule, missing=left, unknown=unknown, reshaped=reshaped, seen=seen, action=action)


def _shorten(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
