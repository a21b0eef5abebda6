"""Count the bytes of live tensors after each operation, to find the peak memory of a step without a GPU."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Record in `peak` the maximum size of tensors created inside the context.

    Temporary memory inside one operation and tensors that existed before do not count. Tensors created inside `on_host`
    count separately.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peaks: Counter[bool] = Counter()
        self.now: Counter[bool] = Counter()
        self._is_host = False
        self._known: dict[int, tuple[int, bool, Any]] = {}
        self._is_blind = False
        self._ways = contextlib.ExitStack()

    def __enter__(self) -> LiveBytes:
        self._ways.enter_context(patch.object(torch.UntypedStorage, "resize_", self._follow_resize()))
        tried = self._unseen(ShardingPropagator._propagate_tensor_meta_non_cached)
        self._ways.enter_context(patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", tried))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._ways.close()

    @property
    def peak(self) -> int:
        return self.peaks[False]

    def begin(self) -> int:
        """Reset the peak; return the live bytes."""
        self.peaks = self.now.copy()
        return self.now[False]

    @contextlib.contextmanager
    def on_host(self) -> Iterator[None]:
        """Count tensors created here as host memory."""
        self._is_host = True
        try:
            yield
        finally:
            self._is_host = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the operations on its local tensors are dispatched again
        before = {leaf.untyped_storage()._cdata for leaf in _tensors((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        if not self._is_blind:
            for leaf in _tensors(found):
                if leaf.untyped_storage()._cdata not in before:
                    self._see(leaf.untyped_storage())
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known[key] = (0, self._is_host, weakref.ref(storage, lambda _: self._forget(key)))
        size, place, alive = self._known[key]
        self._known[key] = (storage.nbytes(), place, alive)
        self.now[place] += storage.nbytes() - size
        self.peaks[place] = max(self.peaks[place], self.now[place])

    def _forget(self, key: int) -> None:
        size, place, _ = self._known.pop(key)
        self.now[place] -= size

    def _follow_resize(self) -> Callable[..., Any]:
        resize = torch.UntypedStorage.resize_

        def seen(storage: torch.UntypedStorage, size: int) -> Any:
            """FSDP frees and refills gathered parameters by storage resizes, which are no operations."""
            found = resize(storage, size)
            self._see(storage)
            return found

        return seen

    def _unseen(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """DTensor tries each operation on global tensors that no rank holds."""

        def run(*args: Any) -> Any:
            before, self._is_blind = self._is_blind, True
            try:
                return call(*args)
            finally:
                self._is_blind = before

        return run


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"]
