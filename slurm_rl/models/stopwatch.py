"""How long a rank's own work takes, without waiting for others: its forward passes, or a product of matrices."""

import math
import time
from types import TracebackType
from typing import Any

import torch

_ON_GPU, _ON_CPU = (2048, 32), (256, 20)
"""Rows of a square matrix, and how often it is multiplied: about a millisecond of a GPU, twenty of a core."""
SHARE = 0.02
"""Largest share of a rank's time for the benchmark."""


class Stopwatch:
    """Sums times on the device's own clock, without synchronizing; see `Yardstick` for sharded models."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[tuple[Any, Any]] | None = [] if device.type == "cuda" else None
        self._seconds = self._start = 0.0

    def __enter__(self) -> None:
        if self._events is None:
            self._start = time.perf_counter()
            return
        pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        pair[0].record()
        self._events.append(pair)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._events is None:
            self._seconds += time.perf_counter() - self._start
        else:
            self._events[-1][1].record()

    def seconds(self) -> float:
        if self._events is None:
            return self._seconds
        return float(sum(begin.elapsed_time(end) for begin, end in self._events)) / 1000.0


class Yardstick:
    """Matrix product of fixed size, timed before a step: the device's speed without communication.

    For sharded parameters (ZeRO-3, FSDP2), whose passes are as slow as the slowest rank. It takes at most `SHARE` of
    the time
    and reports its quickest run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._watch: Stopwatch | None = None
        self._matrices: tuple[torch.Tensor, torch.Tensor] | None = None
        self._least_s, self._due = math.inf, 0.0

    def lay(self) -> None:
        """Begin a step with it, if it is due."""
        if time.monotonic() < self._due:
            return
        size, times = _ON_GPU if self._device.type == "cuda" else _ON_CPU
        if self._matrices is None:
            # GPUs of any age are fast at half precision.
            kind = torch.float16 if self._device.type == "cuda" else torch.float32
            ones = torch.ones(size, size, dtype=kind, device=self._device)
            self._matrices = ones, torch.empty_like(ones)
        left, product = self._matrices
        self._watch = Stopwatch(self._device)
        with self._watch, torch.no_grad():
            for _ in range(times):
                torch.mm(left, left, out=product)

    def read(self) -> float | None:
        """Seconds that it took in this step, once the device is through with the step; None when it was not due."""
        if self._watch is None:
            return None
        seconds, self._watch = self._watch.seconds(), None
        self._least_s = min(self._least_s, seconds)
        self._due = time.monotonic() + self._least_s / SHARE
        return seconds
