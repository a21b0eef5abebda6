"""One rank of a node in the fabric measurement: a process that answers questions of its node.

{"do": "compute"}                                        -> {"tflops": 640.1, "is_same": True, ...}
{"do": "reduce", "address": ..., "port": ..., "key": "0/2", "first": 8, "world": 16}
                                                         -> {"gb_s": 47.3, "is_right": True}
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from slurm_rl.node.bound_torchrun import open_store
from slurm_rl.node.gpu_peaks import bus_bandwidth

_GROUP = timedelta(seconds=40)
"""Timeout of a collective."""
_TRIES = 3
"""The best of them counts: a busy moment does not make a slow node."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurement."""

    matrix: int
    """Rows and columns, at most."""
    matmul_s: float
    message_bytes: int
    """At most."""
    num_messages: int


# 1.5 s let a GPU reach its steady clock; messages above 256 MiB are hardly faster.
_ON_GPU, _ON_CPU = Sizes(8192, 1.5, 2**28, 10), Sizes(256, 0.1, 2**22, 3)
_CALL_S = 0.05
"""Longest product or collective: slower ones are measured at smaller sizes, to end within the deadline."""


@dataclass(frozen=True)
class RankSpec:
    """Place of a rank on its node."""

    local_rank: int
    ranks_per_node: int
    on_gpus: bool
    folder: str
    """Folder of the node's ranks, for their store."""


class Rank:
    """State of a rank between questions."""

    def __init__(self, spec: RankSpec) -> None:
        import torch

        self.spec, self.sizes = spec, _ON_GPU if spec.on_gpus else _ON_CPU
        self.device, self.gpu = "cpu", "CPU"
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
        return self.compute() if question["do"] == "compute" else self.reduce(question)

    def compute(self) -> dict[str, Any]:
        """Multiply matrices, and reduce within the node if it has several ranks."""
        import torch.distributed as dist

        num_ranks = self.spec.ranks_per_node
        found = {**self._multiply(), "gpu": self.gpu}
        if num_ranks > 1:
            store = dist.FileStore(f"{self.spec.folder}/store", num_ranks)
            result = self._all_reduce(store, self.spec.local_rank, num_ranks)
            found |= {"within_gb_s": result["gb_s"], "is_right": result["is_right"]}
        return found

    def reduce(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Reduce over all ranks of several nodes; the ranks of this node begin at `first`."""
        from torch.distributed import PrefixStore

        address = (question["address"], question["port"])
        store = open_store(*address, None, False, _GROUP, wait_for_workers=False)
        rank = question["first"] + self.spec.local_rank
        return self._all_reduce(PrefixStore(question["key"], store), rank, question["world"])

    def _multiply(self) -> dict[str, Any]:
        """Return TFLOP/s of bfloat16 matrices, and whether repeating a product gives the same bits."""
        import torch

        torch.manual_seed(self.spec.local_rank)
        size = min(256, self.sizes.matrix)
        while True:
            left, right = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
            first = left @ right  # the first product of a size loads its kernel
            if size == self.sizes.matrix or self._time(torch.matmul, left, right) > _CALL_S / 8:
                break
            size *= 2
        product = torch.empty_like(first)

        def multiply() -> float:
            began, num_products = time.monotonic(), 0
            while time.monotonic() - began < self.sizes.matmul_s:
                for _ in range(10):
                    torch.matmul(left, right, out=product)
                num_products += 10
                self._synchronize()
            return 2 * size**3 * num_products / (time.monotonic() - began) / 1e12

        tflops = self._best(multiply)
        is_same = bool(torch.equal(first, product)) and bool(first.isfinite().all())
        return {"tflops": tflops, "is_same": is_same}

    def _all_reduce(self, store: Any, rank: int, world: int) -> dict[str, Any]:
        """Return bus bandwidth in GB/s, and whether the sum of rank + 1 over all ranks is right."""
        import torch
        import torch.distributed as dist

        backend, size = "nccl" if self.spec.on_gpus else "gloo", min(2**20, self.sizes.message_bytes)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_GROUP)
        try:
            while True:
                values = torch.empty(size // 4, device=self.device)
                for _ in range(2):  # the first ones set up connections
                    values.fill_(rank + 1)
                    seconds = torch.full((1,), self._time(dist.all_reduce, values), device=self.device)
                dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # all ranks take the same size
                if size == self.sizes.message_bytes or float(seconds) > _CALL_S / 4:
                    break
                size = min(4 * size, self.sizes.message_bytes)
            is_right = bool((values == world * (world + 1) / 2).all())
            values.zero_()

            def reduce() -> float:
                began = time.monotonic()
                for _ in range(self.sizes.num_messages):
                    dist.all_reduce(values)
                self._synchronize()
                return bus_bandwidth(size, (time.monotonic() - began) / self.sizes.num_messages, world)

            gb_s = self._best(reduce)
        finally:
            dist.destroy_process_group()
        return {"gb_s": gb_s, "is_right": is_right}

    def _time(self, call: Callable[..., object], *args: Any) -> float:
        self._synchronize()
        began = time.monotonic()
        call(*args)
        self._synchronize()
        return time.monotonic() - began

    def _best(self, measure: Callable[[], float]) -> float:
        self._synchronize()
        return max(measure() for _ in range(_TRIES))

    def _synchronize(self) -> None:
        if self.spec.on_gpus:
            import torch

            torch.cuda.synchronize()


def serve(spec: RankSpec, link: Connection) -> None:
    """Answer questions until the node closes the connection."""
    os.dup2(2, 1)  # libraries print to stdout
    rank: Rank | None = None
    with contextlib.suppress(EOFError):
        while question := link.recv():
            try:
                rank = rank or Rank(spec)
                answer = rank.answer(question)
            except Exception as error:  # of torch, the driver or a library below
                first = (str(error).strip().splitlines() or [""])[0]
                answer = {"error": f"{type(error).__name__}: {first}"[:300]}
            link.send(answer)
