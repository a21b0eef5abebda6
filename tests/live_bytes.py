"""Counts the bytes of tensors that are alive, operation by operation: what a step needs at its peak, without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """With this on, `peak` is the most that tensors made under it held at once.

    What one operation holds only inside itself is not seen, nor are tensors that were there before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in before:
                self._add(leaf.untyped_storage())
        self.peak = max(self.peak, self._now)
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        for key in [key for key, (reference, _) in self._alive.items() if reference.expired()]:
            self._now -= self._alive.pop(key)[1]
        if storage._cdata not in self._alive:
            self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            self._now += storage.nbytes()
