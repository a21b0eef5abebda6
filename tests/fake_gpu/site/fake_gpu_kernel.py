"""Register Python functions as CUDA kernels, also in graphs."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import Library

DEVICE = ctypes.CDLL(os.environ["FAKE_GPU_LIBRARY"])
DEVICE.fake_gpu_is_capturing.restype = ctypes.c_bool
DEVICE.fake_gpu_is_late.restype = ctypes.c_bool
DEVICE.fake_gpu_synchronize.argtypes = [ctypes.c_void_p]
DEVICE.fake_gpu_record.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
DRY = bool(os.environ.get("FAKE_GPU_DRY"))
"""Replacements return results of the right sizes, without temporary memory that a CUDA kernel does not take."""
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_recorded: dict[int, Callable[[], None]] = {}
_libraries: dict[str, Library] = {}
_replay = _CALL(lambda key: _recorded[key]())
_drop = _CALL(lambda key: _recorded.pop(key, None) and None)


def synchronize() -> None:
    """In late mode: run the current stream's queue, for code that reads memory by its address."""
    if DEVICE.fake_gpu_is_late():
        DEVICE.fake_gpu_synchronize(torch.cuda.current_stream().cuda_stream)


@contextmanager
def paused() -> Iterator[None]:
    DEVICE.fake_gpu_pause(True)
    try:
        yield
    finally:
        DEVICE.fake_gpu_pause(False)


def run_recorded(call: Callable[[], Any]) -> Any:
    """Run a kernel; a graph that is captured runs it again and puts its results where the first ones are."""
    if not DEVICE.fake_gpu_is_capturing():
        return call()
    with paused():
        first = call()
    results = _tensors(first)

    def again() -> None:
        for old, new in zip(results, _tensors(call()), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)

    key = len(_recorded) + 1
    while key in _recorded:
        key += 1
    _recorded[key] = again
    DEVICE.fake_gpu_record(ctypes.cast(_replay, ctypes.c_void_p), ctypes.cast(_drop, ctypes.c_void_p), key)
    return first


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in (value if isinstance(value, tuple | list) else [value]) if isinstance(one, torch.Tensor)]


def kernel(namespace: str, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the replacement of the CUDA kernel of `namespace::name`, if this build has such an operator."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        operator, _, overload = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is None or (overload or "default") not in packet.overloads():
            return function
        if namespace not in _libraries:
            _libraries[namespace] = Library(namespace, "IMPL")

        def run(*args: Any, **keywords: Any) -> Any:
            if DRY and function.__annotations__.get("return") is None:  # it writes its arguments
                return None
            return run_recorded(lambda: function(*args, **keywords))

        _libraries[namespace].impl(name, run, "CUDA", allow_override=True)
        return function

    return register
