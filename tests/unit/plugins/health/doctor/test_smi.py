"""What the vendors' tools print, as real machines printed it (cut to what is read)."""

from __future__ import annotations

import json
from pathlib import Path

from slurm_rl.plugins.health.doctor.smi import parse_driver, parse_nvidia_smi, parse_rocm_smi

SAMPLES = Path(__file__).parents[4] / "samples"


def read(name: str) -> str:
    return (SAMPLES / name).read_text()


def test_a_sound_h100_is_read_whole() -> None:
    text = read("nvidia-smi-q.h100-healthy.txt")
    [gpu] = parse_nvidia_smi(text)
    assert parse_driver(text) == "535.183.01"
    assert (gpu.name, gpu.uuid) == ("NVIDIA H100 80GB HBM3", "GPU-566e6f65-c38e-b12f-4824-6944218668b9")
    assert (gpu.memory_bytes, gpu.used_bytes) == (81559 * 2**20, 0)
    assert (gpu.clock_mhz, gpu.max_clock_mhz) == (345, 1980)
    assert (gpu.slowdowns, gpu.is_split, gpu.trouble) == ((), False, None)


def test_what_slows_a_gpu_down_is_named() -> None:
    [gpu] = parse_nvidia_smi(read("nvidia-smi-q.h100-power-brake.txt"))
    assert gpu.slowdowns == ("HW Slowdown", "HW Power Brake Slowdown")
    assert gpu.clock_mhz is None, "the record ends before the clocks"


def test_rows_that_wait_for_a_reset_are_trouble() -> None:
    [gpu] = parse_nvidia_smi(read("nvidia-smi-q.a10-remap-pending.txt"))
    assert gpu.trouble == "rows of its memory wait for a reset to be remapped"


def test_output_that_is_cut_short_gives_what_it_has() -> None:
    text = read("nvidia-smi-q.h100-healthy.txt")
    [gpu] = parse_nvidia_smi(text[: text.index("FB Memory Usage")])
    assert gpu.name == "NVIDIA H100 80GB HBM3" and gpu.memory_bytes is None


def test_a_gpu_that_fell_off_the_bus_is_none() -> None:
    assert parse_nvidia_smi("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n") == []


def test_an_mi250_is_read_whatever_is_warned_of_before() -> None:
    text = "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + read("rocm-smi-a.mi250.json")
    [gpu] = parse_rocm_smi(text)
    assert (gpu.clock_mhz, gpu.max_clock_mhz, gpu.uuid) == (800, 1700, "0x719d230578348e8c")


def test_cards_are_in_the_order_of_their_numbers() -> None:
    cards = {f"card{number}": {"Unique ID": str(number)} for number in (10, 2, 0)}
    assert [gpu.uuid for gpu in parse_rocm_smi(json.dumps(cards))] == ["0", "2", "10"]
