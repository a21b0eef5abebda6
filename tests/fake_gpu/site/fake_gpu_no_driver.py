"""sitecustomize of a CPU run: give Triton a backend without a driver before vLLM asks for one."""

import os
import sys
from importlib.abc import MetaPathFinder
from types import SimpleNamespace


class _Finder(MetaPathFinder):
    is_done = False

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "vllm" and not self.is_done:
            self.is_done = True
            import triton

            driver = type("NoDriver", (), {"is_active": staticmethod(lambda: False)})
            triton.backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)


if os.environ.get("VLLM_USE_V2_MODEL_RUNNER"):
    sys.meta_path.insert(0, _Finder())
