"""One rank of a node in the fabric measurement: `python -m slurm_rl.plugins.health.fabric_rank <Rank as JSON>`.

It reads a question per line and writes an answer per line, both JSON.

    {"do": "compute"}                                        -> {"tflops": 640.1, "is_same": true, ...}
    {"do": "open", "address": "10.0.0.1"}                    -> {"port": 41234}
    {"do": "reduce", "address": ..., "port": ..., "first": 8, "world": 16}  -> {"gb_s": 47.3, "is_right": true}
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from slurm_rl.node.bound_torchrun import open_store
from slurm_rl.node.gpu_peaks import bus_bandwidth, least_rdma_gb_s

_GROUP = timedelta(seconds=40)
"""Timeout of a collective."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement."""

    matrix: int
    """Rows and columns."""
    matmul_s: float
    message_bytes: int
    num_messages: int


# 1.5 s let a GPU reach its steady clock; messages above 256 MiB are hardly faster.
_ON_GPU, _ON_CPU = Sizes(8192, 1.5, 2**28, 20), Sizes(256, 0.1, 2**22, 5)


@dataclass(frozen=True)
class RankSpec:
    """Place of a rank on its node."""

    local_rank: int
    ranks_per_node: int
    on_gpus: bool
    folder: str
    """Folder of the node's ranks, for their store."""

    def to_argv(self) -> list[str]:
        return [json.dumps(asdict(self))]


class Rank:
    """State of a rank between questions."""

    def __init__(self, spec: RankSpec) -> None:
        import torch

        self.spec, self.sizes = spec, _ON_GPU if spec.on_gpus else _ON_CPU
        self.device, self.gpu = "cpu", "CPU"
        self._num_groups = 0
        self._store: Any = None
        if not spec.on_gpus:
            torch.set_num_threads(1)
            return
        count, build = torch.cuda.device_count(), torch.version.hip or torch.version.cuda
        if count <= spec.local_rank:
            raise RuntimeError(f"torch {torch.__version__} (built for {build}) sees {count} GPUs")
        torch.cuda.set_device(spec.local_rank)
        self.device, self.gpu = "cuda", torch.cuda.get_device_name()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a question."""
        result: dict[str, Any] = getattr(self, f"do_{question['do']}")(question)
        return result

    def do_compute(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Multiply matrices, and reduce within the node if it has several ranks."""
        import torch.distributed as dist

        num_ranks = self.spec.ranks_per_node
        found = {**self._multiply(), "gpu": self.gpu, "num_ranks": num_ranks}
        if self.spec.on_gpus:
            found["least_gb_s"] = least_rdma_gb_s(read_port_rates(), num_ranks)
        if num_ranks > 1:
            self._num_groups += 1
            store = dist.FileStore(f"{self.spec.folder}/store-{self._num_groups}", num_ranks)
            result = self._all_reduce(store, self.spec.local_rank, num_ranks)
            found |= {"within_gb_s": result["gb_s"], "is_right": result["is_right"]}
        return found

    def do_open(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Open the store of the next reduce, on local rank 0."""
        if self.spec.local_rank:
            return {}
        self._store = open_store(question["address"], 0, None, True, _GROUP, wait_for_workers=False)
        return {"port": int(self._store.port)}

    def do_reduce(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce over all ranks of several nodes; the ranks of this node begin at `first`."""
        rank = question["first"] + self.spec.local_rank
        store, self._store = self._store, None
        if rank or store is None:
            address = (question["address"], question["port"])
            store = open_store(*address, None, False, _GROUP, wait_for_workers=False)
        return self._all_reduce(store, rank, question["world"])

    def _multiply(self) -> dict[str, Any]:
        """Return TFLOP/s of bfloat16 matrices, and whether repeating a product gives the same bits."""
        import torch

        size = self.sizes.matrix
        torch.manual_seed(self.spec.local_rank)
        left, right = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        first = left @ right
        product = torch.empty_like(first)
        self._synchronize()
        began, num_products = time.monotonic(), 0
        while time.monotonic() - began < self.sizes.matmul_s:
            for _ in range(10):
                torch.matmul(left, right, out=product)
            num_products += 10
            self._synchronize()
        seconds = time.monotonic() - began
        is_same = bool(torch.equal(first, product)) and bool(first.isfinite().all())
        return {"tflops": 2 * size**3 * num_products / seconds / 1e12, "is_same": is_same}

    def _all_reduce(self, store: Any, rank: int, world: int) -> dict[str, Any]:
        """Return bus bandwidth in GB/s, and whether the sum of rank + 1 over all ranks is right."""
        import torch
        import torch.distributed as dist

        backend = "nccl" if self.spec.on_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_GROUP)
        try:
            values = torch.empty(self.sizes.message_bytes // 4, device=self.device)
            for _ in range(3):  # the first ones set up connections
                values.fill_(rank + 1)
                dist.all_reduce(values)
            is_right = bool((values == world * (world + 1) / 2).all())
            self._synchronize()
            values.zero_()
            began = time.monotonic()
            for _ in range(self.sizes.num_messages):
                dist.all_reduce(values)
            self._synchronize()
            seconds = (time.monotonic() - began) / self.sizes.num_messages
        finally:
            dist.destroy_process_group()
        return {"gb_s": bus_bandwidth(self.sizes.message_bytes, seconds, world), "is_right": is_right}

    def _synchronize(self) -> None:
        if self.spec.on_gpus:
            import torch

            torch.cuda.synchronize()


def read_port_rates(folder: Path = Path("/sys/class/infiniband")) -> list[float]:
    """Return the rates of the node's active RDMA ports in Gb/s."""
    rates = []
    for port in folder.glob("*/ports/*"):
        with contextlib.suppress(OSError, ValueError):
            if "ACTIVE" in (port / "state").read_text(encoding="ascii"):
                rates.append(float((port / "rate").read_text(encoding="ascii").split()[0]))
    return rates


def main(spec: str) -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print to stdout
    rank: Rank | None = None
    for line in sys.stdin:
        try:
            rank = rank or Rank(RankSpec(**json.loads(spec)))
            answer = rank.answer(json.loads(line))
        except Exception as error:  # of torch, the driver or a library below
            first = (str(error).strip().splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {first}"[:300]}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
