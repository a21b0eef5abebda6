"""Checksums detect changed weights, and do not depend on device and block size."""

from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from slurm_rl.rollout.weights import checksum
from slurm_rl.rollout.weights.checksum import WeightChecksum, hash_tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.float8_e4m3fn]


def digest(state: Iterable[tuple[str, Tensor]]) -> str:
    found = WeightChecksum()
    for _ in found.passing(state):
        pass
    return found.hexdigest()


def draw(numbers: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (numbers * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3 * 2**14), st.sampled_from(DTYPES), st.integers(0, 2**32), st.data())
def test_hash_detects_changed_and_swapped_bytes(
    numbers: int, dtype: torch.dtype, seed: int, data: st.DataObject
) -> None:
    tensor = draw(numbers, dtype, seed)
    expected, size = int(hash_tensor(tensor)), tensor.nbytes
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    changed = tensor.clone()
    as_bytes(changed)[first] ^= data.draw(st.integers(1, 255))
    assert int(hash_tensor(changed)) != expected
    swapped = tensor.clone()
    as_bytes(swapped)[[first, second]] = as_bytes(tensor)[[second, first]]
    differs = not torch.equal(as_bytes(swapped), as_bytes(tensor))
    assert (int(hash_tensor(swapped)) != expected) == differs


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "two signs": lambda t: torch.where(torch.arange(t.numel()).view(t.shape) % 40_000 == 7, -t, t),
    "every sign": lambda t: -t,
    "rows turned": lambda t: t.roll(1, 0),
    "rows permuted": lambda t: t[torch.tensor([1, 0, *range(2, len(t))])],
    "blocks of rows": lambda t: torch.cat([t[16:32], t[:16], t[32:]]),
    "zeros": lambda t: torch.cat([t[:-1], torch.zeros_like(t[:1])]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", CHANGES)
def test_hash_detects_changes_of_matrices(change: str, dtype: torch.dtype) -> None:
    matrix = torch.randn(48, 2048, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert int(hash_tensor(CHANGES[change](matrix))) != int(hash_tensor(matrix))


def test_checksum_covers_names_dtypes_shapes_and_values() -> None:
    one, other = torch.arange(6.0), torch.arange(6.0) + 1
    states = [
        {"a": one, "b": other},
        {"a": other, "b": one},
        {"a": one, "c": other},
        {"a": one.view(2, 3), "b": other},
        {"a": one.view(torch.int32), "b": other},
        {"a": one},
        {"a": one, "b": other, "c": torch.zeros(0)},
        {},
    ]
    assert len({digest(state.items()) for state in states}) == len(states)
    assert digest({"b": other, "a": one}.items()) == digest(states[0].items()), "whatever order they come in"


def in_plain_integers(tensor: Tensor) -> int:
    """Return the checksum computed with Python integers."""
    factors = [value % 2**64 for value in checksum._factors(torch.device("cpu")).tolist()]
    data = bytes(as_bytes(tensor.contiguous()).tolist())
    while True:
        sums = []
        for start in range(0, max(len(data), 1), 4 * len(factors)):
            row = data[start : start + 4 * len(factors)].ljust(4 * len(factors), b"\0")
            words = [int.from_bytes(row[i : i + 4], "little", signed=True) for i in range(0, len(row), 4)]
            sums.append(sum(word * factor for word, factor in zip(words, factors, strict=True)) % 2**64)
        if len(sums) == 1:
            return sums[0]
        data = b"".join(value.to_bytes(8, "little") for value in sums)


@pytest.mark.parametrize(("block", "small_bytes"), [(1, -1), (3, -1), (2**11, -1), (1, 2**20)])
def test_hash_is_independent_of_block_size(block: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU numpy sums small tensors; torch sums larger ones, and all tensors on GPU."""
    monkeypatch.setattr(checksum, "_BLOCK_ROWS", {"cpu": block})
    monkeypatch.setattr(checksum, "_SMALL_BYTES", small_bytes)
    for numbers in (0, 1, 4096, 4097, 5 * 4096 + 3):
        tensor = draw(numbers, torch.float32, numbers)
        assert int(hash_tensor(tensor)) % 2**64 == in_plain_integers(tensor)


def test_hash_is_independent_of_strides() -> None:
    whole = torch.randn(70, 130).to(torch.bfloat16)
    for view in (whole[1:, 3:], whole.t(), whole.view(-1)[1:], whole[3, 5]):
        assert int(hash_tensor(view)) == int(hash_tensor(view.clone(memory_format=torch.contiguous_format)))
