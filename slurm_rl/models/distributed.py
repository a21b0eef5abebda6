"""The process group, and collectives of Python objects."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from slurm_rl.algorithms.totals import add_totals
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import BringUpError, TrainingError, first_line
from slurm_rl.node.bound_torchrun import open_store

Value = TypeVar("Value")


def init_process_group(rank: int, world_size: int, master_address: str, port: int, timeout_s: float) -> None:
    """Join the policy's process group: gloo on CPU, nccl (RCCL on AMD) for tensors on GPUs.

    Raises:
        BringUpError: not all ranks joined within `timeout_s`, or the port is taken.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        timeout = timedelta(seconds=timeout_s)
        # Under torchrun its agent has the store, and every rank is a client.
        is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = open_store(master_address, port, world_size, is_master, timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    except (RuntimeError, ValueError, OSError) as error:  # torch's store and network errors are RuntimeErrors
        raise BringUpError(
            f"policy rank {rank} of {world_size} must reach all ranks at {master_address}:{port} "
            f"within {timeout_s:g} s ({first_line(error)})",
            action="look for a rank that died before this one in its log, or a port in use",
        ) from error


def leave_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def get_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def get_world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def get_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def device_memory() -> int:
    """Return the bytes of this process's GPU; without one, of its share of the host's memory."""
    device = get_device()
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // get_world_size()


def set_num_threads(config: PolicyConfig) -> None:
    """Set torch's CPU threads; without a number, CPU workers share the cores of the machine."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    elif get_device().type == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (config.num_workers or 1)))


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks, in rank order, on every rank."""
    if not dist.is_initialized():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def call_on_rank_0(call: Callable[[], Value]) -> Value:
    """Return the result of `call` on rank 0, or raise its error, on every rank."""
    found: tuple[Any, Exception | None] = (None, None)
    if get_rank() == 0:
        try:
            found = call(), None
        except Exception as error:
            found = None, error
    value, failed = gather_objects(found)[0]
    if failed is not None:
        raise failed
    returned: Value = value
    return returned


def raise_anywhere(error: Exception | None) -> None:
    """Raise the error of the first rank that has one, on every rank; returns when none has."""
    for one in gather_objects(error):
        if one is not None:
            raise one


def sum_over_ranks(sums: Mapping[str, float]) -> dict[str, float]:
    """Add up by key in rank order, for equal bits; keys may differ by rank."""
    totals: dict[str, float] = {}
    for one in gather_objects(dict(sums)):
        add_totals(totals, one)
    return totals


def require_equal_counts(num_micro_batches: int) -> None:
    """Raise TrainingError on all ranks if their micro-batches differ in number: a collective would hang."""
    counts = gather_objects(num_micro_batches)
    if len(set(counts)) > 1:
        raise TrainingError(
            "every policy rank must get the same number of micro-batches",
            seen=f"{counts} by rank",
            action="distribute them with slurm_rl.algorithms.packing.distribute",
        )
