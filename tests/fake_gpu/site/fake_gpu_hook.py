"""Replace CUDA's kernels when torch, Triton and vLLM are imported. Loaded by fake_gpu.pth if FAKE_GPU is set."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_REPLACEMENTS = {
    "torch": "fake_gpu_torch",
    "triton.runtime.interpreter": "fake_gpu_triton",
    "vllm.vllm_flash_attn.flash_attn_interface": "fake_gpu_paged",
    "vllm.v1.attention.backends.flash_attn": "fake_gpu_float32",
    "vllm._custom_ops": "fake_gpu_vllm",
    "vllm.compilation.backends": "fake_gpu_compile",
    "vllm.distributed.device_communicators.cuda_wrapper": "fake_gpu_cudart",
}
"""Module -> our module to import once it is loaded."""


class _Finder(MetaPathFinder):
    is_asking = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = _REPLACEMENTS.get(name)
        if ours is None or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_asking = False
        loader: Any = spec.loader if spec else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(ours)

            loader.exec_module = execute_and_replace
        return spec


sys.meta_path.insert(0, _Finder())
