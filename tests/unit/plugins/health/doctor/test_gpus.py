"""Devices by a tool that prints what real machines printed, and masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.plugins.health.doctor import gpus
from slurm_rl.plugins.health.doctor.finding import Finding, Question
from slurm_rl.plugins.health.doctor.smi import parse_nvidia_smi
from tests.unit.plugins.health.doctor.kit import question
from tests.unit.plugins.health.doctor.test_smi import read

TEXT = read("nvidia-smi-q.h100-healthy.txt")


def put_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> None:
    (folder / "said").write_text(text)
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {folder}/said\nexit {status}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def look(folder: Path, *words: str) -> dict[str, Finding]:
    return {one.what: one for one in gpus.look_at_gpus(question(folder, "+cluster=nvidia_h100", *words))}


def eight(body: str = TEXT) -> str:
    head, _, gpu = body.partition("GPU 00000000:53:00.0\n")
    return head + "".join(
        f"GPU 00000000:{number}3:00.0\n{gpu.replace('566e6f65', f'{number}' * 8)}" for number in range(8)
    )


def test_a_node_as_the_preset_says_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, eight())
    found = look(tmp_path)
    assert (found["driver"].state, found["driver"].seen) == ("ok", "535.183.01")
    assert (found["devices"].state, found["devices"].seen) == ("ok", "8 x NVIDIA H100 80GB HBM3, 86 GB")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("Used                              : 0 MiB", "Used                              : 9000 MiB", "in use already"),
        ("81559 MiB", "40960 MiB", "43 GB"),
        (
            "        Current                           : Disabled",
            "        Current                           : Enabled",
            "(MIG)",
        ),
        ("Reset Required                    : No", "Reset Required                    : Yes", "must be reset"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, said: str
) -> None:
    put_tool(tmp_path, monkeypatch, eight(TEXT.replace(before, after)))
    found = look(tmp_path)["devices"]
    assert found.state == "wrong" and said in found.seen and found.action


def test_fewer_gpus_than_the_preset_has_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, TEXT)
    found = look(tmp_path)["devices"]
    assert found.state == "wrong" and "cluster.gpus_per_node=1" in found.action


def test_a_tool_that_fails_is_the_drivers_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n", 255)
    found = look(tmp_path)
    assert list(found) == ["driver"]
    assert found["driver"].state == "wrong" and "Unknown Error" in found["driver"].seen


@pytest.mark.parametrize(
    ("mask", "mine"),
    [
        ("4,5", [4, 5]),
        ("GPU-66666666", [6]),
        ("GPU-77777777-c38e-b12f-4824-6944218668b9,GPU-00000000", [7, 0]),
        ("12,13", list(range(8))),
    ],
)
def test_of_all_the_tool_shows_the_masks_are_ours(mask: str, mine: list[int]) -> None:
    shown = parse_nvidia_smi(eight())
    chosen = gpus.choose_mine(shown, "nvidia", len(mask.split(",")), {"CUDA_VISIBLE_DEVICES": mask})
    assert [shown.index(gpu) for gpu in chosen] == mine


def mask_of(asked: Question) -> Finding:
    return gpus.look_at_masks(asked)[0]


def test_a_grant_smaller_than_the_preset_is_wrong_and_one_mask_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = question(tmp_path, "+cluster=nvidia_h100", "cluster.gpus_per_node=2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert mask_of(asked).state == "ok" and mask_of(asked).seen.endswith("a run gets 4,5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert mask_of(asked).state == "wrong" and "scontrol show node" in mask_of(asked).action


def test_a_machine_is_known_by_its_device_files(tmp_path: Path) -> None:
    assert gpus.find_accelerator(tmp_path) == ("cpu", 0)
    (tmp_path / "nvidiactl").touch()
    assert gpus.find_accelerator(tmp_path) == ("cpu", 0), "a driver, and no device"
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()
    assert gpus.find_accelerator(tmp_path) == ("nvidia", 3)
