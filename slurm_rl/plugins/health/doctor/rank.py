"""One rank of a node's all-reduce: `python -m slurm_rl.plugins.health.doctor.rank <its words as JSON>`; a line a step.

A step prints a line before and a line after, so that whoever watches knows in which of them it hangs. On a CPU the
same code multiplies smaller matrices and talks by gloo.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from slurm_rl.plugins.health.doctor.meeting import MEETING_S
from slurm_rl.plugins.health.doctor.peaks import bus_bandwidth

TORCH, MATMUL, WITHIN, BETWEEN = "torch", "matmul", "all-reduce in the node", "all-reduce between nodes"
STEPS = (TORCH, MATMUL, WITHIN, BETWEEN)
# Within it a collective must come to its end, or its rank says that it has not.
GROUP_S = 40.0
_GRACE_S = 5.0


@dataclass(frozen=True)
class Size:
    """Of what is computed and sent."""

    matrix: int
    """Rows and columns of a square one."""
    matmul_s: float
    message_bytes: int
    num_messages: int


# A second and a half lets a GPU come to the clock that it keeps. 256 MiB: larger ones are no faster by much.
ON_GPU, ON_CPU = Size(8192, 1.5, 2**28, 20), Size(256, 0.1, 2**22, 5)


@dataclass(frozen=True)
class Words:
    """What a rank is told."""

    local_rank: int
    ranks_per_node: int
    node: int
    num_nodes: int
    on_gpus: bool
    folder: str
    """The node's own, for its ranks alone: their store, and the address of the first node once it is known."""

    def to_argv(self) -> list[str]:
        return [json.dumps(asdict(self))]

    @property
    def size(self) -> Size:
        return ON_GPU if self.on_gpus else ON_CPU

    @property
    def meeting(self) -> Path:
        return Path(self.folder) / "meeting.json"


def main(text: str) -> int:
    words = Words(**json.loads(text))
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print, too

    def say(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    steps: dict[str, Callable[[Words], dict[str, Any]]] = {TORCH: open_torch, MATMUL: multiply}
    if words.ranks_per_node > 1:
        steps[WITHIN] = reduce_within
    if words.num_nodes > 1:
        steps[BETWEEN] = reduce_between
    for name, run in steps.items():
        say(step=name, state="begun")
        try:
            found = run(words)
        except Exception as error:  # of torch, a driver or a library below it
            lines = str(error).strip().splitlines() or [""]
            say(step=name, state="failed", error=f"{type(error).__name__}: {lines[0]}"[:300])
            return 1
        say(step=name, state="done", **found)
    return 0


def open_torch(words: Words) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    found = {"version": torch.__version__, "name": "CPU"}
    if not words.on_gpus:
        torch.set_num_threads(1)
        return found
    count = torch.cuda.device_count()
    found |= {"count": count, "build": torch.version.hip or torch.version.cuda}
    if count <= words.local_rank:
        raise RuntimeError(f"torch {torch.__version__} (built for {found['build']}) sees {count} GPUs")
    torch.cuda.set_device(words.local_rank)
    device = torch.cuda.get_device_properties(words.local_rank)
    free, total = torch.cuda.mem_get_info()
    memory = {"free": free, "total": total, "bfloat16": torch.cuda.is_bf16_supported()}
    return {**found, **memory, "name": device.name, "uuid": str(getattr(device, "uuid", ""))}


def multiply(words: Words) -> dict[str, Any]:
    """TFLOP/s of bfloat16 matrices, and whether the same product is the same twice."""
    import torch

    place, size = "cuda" if words.on_gpus else "cpu", words.size
    torch.manual_seed(words.local_rank)
    left, right = (torch.randn(size.matrix, size.matrix, device=place, dtype=torch.bfloat16) for _ in range(2))
    first = left @ right
    product = torch.empty_like(first)
    _settle(words)
    began, num_products = time.monotonic(), 0
    while time.monotonic() - began < size.matmul_s:
        for _ in range(10):
            torch.matmul(left, right, out=product)
        num_products += 10
        _settle(words)
    seconds = time.monotonic() - began
    is_same = bool(torch.equal(first, product)) and bool(first.isfinite().all())
    return {"tflops": 2 * size.matrix**3 * num_products / seconds / 1e12, "is_same": is_same}


def reduce_within(words: Words) -> dict[str, Any]:
    import torch.distributed as dist

    if not words.on_gpus:
        # By its own name a machine may be 127.0.1.1, or not be known at all.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{words.folder}/store", words.ranks_per_node)
    return all_reduce(words, store, words.local_rank, words.ranks_per_node)


def reduce_between(words: Words) -> dict[str, Any]:
    from slurm_rl.node.bound_torchrun import open_store

    deadline = time.monotonic() + MEETING_S + _GRACE_S
    while not words.meeting.is_file():
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes did not meet")
        time.sleep(0.05)
    meeting = json.loads(words.meeting.read_text(encoding="utf-8"))
    if "error" in meeting:
        raise RuntimeError(meeting["error"])
    if meeting["interface"] and not words.on_gpus:
        os.environ["GLOO_SOCKET_IFNAME"] = meeting["interface"]
    rank, world = words.node * words.ranks_per_node + words.local_rank, words.num_nodes * words.ranks_per_node
    timeout = timedelta(seconds=GROUP_S)
    store = open_store(meeting["address"], meeting["port"], world, rank == 0, timeout)
    return {**all_reduce(words, store, rank, world), "interface": meeting["interface"]}


def all_reduce(words: Words, store: Any, rank: int, world: int) -> dict[str, Any]:
    """Bus bandwidth in GB/s, over ranks that all give their number plus one: the sum is known."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if words.on_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=GROUP_S))
    try:
        values = torch.empty(words.size.message_bytes // 4, device="cuda" if words.on_gpus else "cpu")
        for _ in range(3):  # the first ones connect
            values.fill_(rank + 1)
            dist.all_reduce(values)
        is_right = bool((values == world * (world + 1) / 2).all())
        _settle(words)
        values.zero_()
        began = time.monotonic()
        for _ in range(words.size.num_messages):
            dist.all_reduce(values)
        _settle(words)
        seconds = (time.monotonic() - began) / words.size.num_messages
    finally:
        dist.destroy_process_group()
    return {"gb_s": bus_bandwidth(words.size.message_bytes, seconds, world), "is_right": is_right, "world": world}


def _settle(words: Words) -> None:
    """Wait for what was asked of the GPU."""
    if words.on_gpus:
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
