import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.plugins.health import amd, nvidia
from slurm_rl.plugins.health.gpus import parse_gpus, parse_nvidia_smi, parse_rocm_smi, select_visible
from slurm_rl.plugins.health.table import TABLE, Check
from slurm_rl.plugins.health.verdict import NodeSpec

SAMPLES = Path(__file__).parents[3] / "samples"
NOW = 1740327900.0
"""Unix time after the last line of the recorded kernel log."""
SPEC = NodeSpec("nvidia", gpus=1, num_nodes=2, canary="w", needs_python=True, checked_at=(NOW, NOW + 1))


def read(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


HEALTHY = read("nvidia-smi-q.h100-healthy.txt")


def healthy(*fields: tuple[str, str]) -> str:
    """Return the healthy H100 with other values in these fields."""
    lines = HEALTHY.splitlines()
    for key, value in fields:
        index = next(index for index, line in enumerate(lines) if line.strip().startswith(key))
        lines[index] = f"{lines[index].partition(' : ')[0]} : {value}"
    return "\n".join(lines)


def node(num_gpus: int, text: str = HEALTHY) -> str:
    head, _, gpu = text.partition("GPU 00000000:53:00.0\n")
    gpus = (f"GPU 00000000:{n}3:00.0\n{gpu.replace('566e6f65', f'{n}' * 8)}" for n in range(num_gpus))
    return head + "".join(gpus)


def with_recovery(action: str) -> str:
    return HEALTHY.replace(
        "    Sparse Operation", f"    GPU Recovery Action                   : {action}\n    Sparse Operation"
    )


@pytest.mark.parametrize(
    ("name", "states"),
    [
        # gpus, ecc, clocks
        ("nvidia-smi-q.h100-healthy.txt", "ok ok ok"),
        ("nvidia-smi-q.h100-sw-thermal.txt", "warn unknown warn"),
        ("nvidia-smi-q.h100-power-brake.txt", "ok unknown warn"),
        ("nvidia-smi-q.a10-remap-pending.txt", "unknown warn unknown"),
        ("nvidia-smi-q.h100-cut-short.txt", "unknown unknown unknown"),
        ("nvidia-smi-q.rtx4090-unknown-error.txt", "unknown unknown unknown"),
        ("nvidia-smi-q.retired-pages.txt", "unknown warn unknown"),
        ("nvidia-smi-missing-gpu.txt", "bad unknown unknown"),
    ],
)
def test_nvidia_smi_samples_have_verdicts(name: str, states: str) -> None:
    checks = (nvidia.check_gpus, nvidia.check_ecc, nvidia.check_clocks)
    found = [check(read(name), 0, SPEC) for check in checks]
    assert [verdict.state for verdict in found] == states.split(), found


@pytest.mark.parametrize(
    ("rc", "state"), [(0, "ok"), (9, "bad"), (15, "bad"), (124, "bad"), (127, "unknown"), (137, "unknown")]
)
def test_gpus_judges_exit_status_of_nvidia_smi(rc: int, state: str) -> None:
    assert nvidia.check_gpus(HEALTHY, rc, SPEC).state == state


@pytest.mark.parametrize(
    ("text", "gpus", "mem_gb", "state", "seen"),
    [
        (node(8), 8, 80, "ok", "8 x NVIDIA H100 80GB HBM3"),
        (node(1).replace(": 8\n", ": 1\n"), 2, None, "bad", "1 x NVIDIA H100 80GB HBM3, not 2"),
        (node(2, healthy(("Total", "40960 MiB"))), 2, 80, "bad", "GPU 0: 43 GB, not 80 (cluster.gpu_mem_gb)"),
        (node(2, healthy(("Current", "Enabled"))), 2, 80, "warn", "GPU 0 is split by MIG"),
        (node(2, healthy(("Used", "9000 MiB"))), 2, 80, "warn", "GPU 0: 9000 MiB already in use"),
    ],
)
def test_gpus_compares_with_preset(text: str, gpus: int, mem_gb: float | None, state: str, seen: str) -> None:
    found = nvidia.check_gpus(text, 0, NodeSpec("nvidia", gpus, 1, "w", True, (0, 1), mem_gb))
    assert found.state == state and found.seen.startswith(seen)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ([("Remapping Failure", "Yes")], "bad"),
        ([("SRAM Uncorrectable Parity", "2")], "bad"),
        ([("SRAM Threshold Exceeded", "Yes")], "bad"),
        ([("DRAM Uncorrectable", "3")], "warn"),
        ([("Pending Page Blacklist", "Yes")], "warn"),
        ([], "ok"),
        ([("Remapping Failure", "Unknown Error")], "unknown"),
    ],
)
def test_ecc_judges_memory_errors(fields: list[tuple[str, str]], state: str) -> None:
    assert nvidia.check_ecc(healthy(*fields), 0, SPEC).state == state


@pytest.mark.parametrize(
    ("action", "state"),
    [
        ("None", "ok"),
        ("Reboot", "bad"),
        ("Node Reboot Required", "bad"),
        ("N/A", "ok"),
        ("Requested functionality has been deprecated", "ok"),
    ],
)
def test_ecc_follows_recovery_action(action: str, state: str) -> None:
    assert nvidia.check_ecc(with_recovery(action), 0, SPEC).state == state
    assert nvidia.check_ecc(healthy(("Reset Required", "Yes")), 0, SPEC).state == "bad"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (read("amdgpu-ras-sysfs.txt"), "bad"),
        (read("amd-smi-metric-ecc.rocm7.2.json"), "ok"),
        (read("amd-smi-metric.mi300x-rocm7.0.json"), "unknown"),
        (read("amd-smi-xgmi-and-pcie.shapes.json"), "unknown"),
        ('[{"gpu": 0, "ecc": {"total_uncorrectable_count": 2}}]', "bad"),
        ("ue: 0\nce: 1001\n", "ok"),
        ("ue: 1\nce: 0\n", "bad"),
    ],
)
def test_ecc_of_amd_judges_error_counters(text: str, state: str) -> None:
    assert amd.check_ecc(text, 0, SPEC).state == state


@pytest.mark.parametrize(
    ("text", "gpus", "state"),
    [
        (read("rocm-smi-a.mi250.json"), 1, "ok"),
        (f"kfd 8\n{read('rocm-smi.mi300x.json')}", 1, "ok"),
        (read("rocm-smi-a.mi250.json"), 2, "bad"),
        ("kfd 1\n", 2, "bad"),
    ],
)
def test_amd_gpus_counts_cards(text: str, gpus: int, state: str) -> None:
    assert amd.check_gpus(text, 0, NodeSpec("amd", gpus, 2, "w", True, (0, 1))).state == state


def test_parse_nvidia_smi_reads_healthy_h100() -> None:
    [gpu] = parse_nvidia_smi(HEALTHY)
    assert (gpu.name, gpu.uuid) == ("NVIDIA H100 80GB HBM3", "GPU-566e6f65-c38e-b12f-4824-6944218668b9")
    assert (gpu.memory_bytes, gpu.used_bytes) == (81559 * 2**20, 0)
    assert parse_nvidia_smi("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error\n") == []


def test_parse_rocm_smi_sorts_cards_by_number() -> None:
    text = "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + read("rocm-smi-a.mi250.json")
    assert [gpu.uuid for gpu in parse_gpus("amd", text)] == ["0x719d230578348e8c"]
    cards = {f"card{number}": {"Unique ID": str(number)} for number in (10, 2, 0)}
    assert [gpu.uuid for gpu in parse_rocm_smi(json.dumps(cards))] == ["0", "2", "10"]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("4,5", [4, 5]),
        ("GPU-66666666", [6]),
        ("GPU-77777777-c38e-b12f-4824-6944218668b9,GPU-00000000", [7, 0]),
        ("12,13", list(range(8))),
    ],
)
def test_select_visible_applies_mask(mask: str, expected: list[int]) -> None:
    gpus = parse_nvidia_smi(node(8))
    chosen = select_visible(gpus, "nvidia", len(mask.split(",")), f"mask {mask}")
    assert [gpus.index(gpu) for gpu in chosen] == expected


_PARSED = [check for check in TABLE if check.parse]


@pytest.mark.parametrize("check", _PARSED, ids=lambda check: f"{check.name}-{check.vendor}")
@settings(max_examples=30)
@given(text=st.text(max_size=200) | st.binary(max_size=100).map(lambda raw: raw.decode(errors="replace")))
def test_checks_of_garbage_are_unknown(check: Check, text: str) -> None:
    assert check.parse and check.parse(text, 0, SPEC).state == "unknown"
    for rc in (1, 9, 124, 127, 137):
        assert check.parse(text, rc, SPEC).state not in ("ok", "warn")


_SAMPLE_OF = {
    ("ecc", "nvidia"): HEALTHY,
    ("clocks", "nvidia"): HEALTHY,
    ("gpus", "amd"): read("rocm-smi.mi300x.json"),
    ("ecc", "amd"): read("amd-smi-metric-ecc.rocm7.2.json"),
}


@pytest.mark.parametrize(("name", "vendor"), _SAMPLE_OF)
@settings(max_examples=30)
@given(share=st.floats(0.0, 0.97))
def test_checks_of_cut_output_are_unknown(name: str, vendor: str, share: float) -> None:
    check = next(check for check in TABLE if (check.name, check.vendor) == (name, vendor))
    text = _SAMPLE_OF[name, vendor].strip()
    assert check.parse and check.parse(text[: int(share * len(text))], 0, SPEC).state == "unknown"
