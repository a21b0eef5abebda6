"""Versions of an image, without importing its packages."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.node import image_report


class Nvml:
    """A stand-in for NVIDIA's management library."""

    def __init__(self, name: str) -> None:
        if name != "libnvidia-ml.so.1":
            raise OSError(f"{name}: cannot open shared object file")

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlShutdown(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, room: int) -> int:
        text.value = b"580.65.06"
        return 0


def test_driver_version_comes_from_nvml_without_proc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_report, "_NVIDIA_DRIVER", tmp_path / "version")
    monkeypatch.setattr(ctypes, "CDLL", Nvml)
    assert image_report.collect_report()["versions"]["nvidia driver"] == "580.65.06"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release\n")
    assert image_report.collect_report()["versions"]["nvidia driver"] == "575.57.08"
