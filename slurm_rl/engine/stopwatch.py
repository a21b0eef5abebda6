"""How long a rank's own work takes: the forward passes of a step, without what waits for other ranks."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import torch


class Stopwatch:
    """Adds up what is done `with` it, on the device's own clock: nobody waits for a GPU for its sake.

    Of a model whose parameters are split (ZeRO-3, FSDP2) a forward pass gathers them from all ranks, so that all of
    them are as slow as the slowest, and none stands out.
    """

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
        """So far; on a GPU once all of it has ended."""
        if self._events is None:
            return self._seconds
        return float(sum(begin.elapsed_time(end) for begin, end in self._events)) / 1000.0
