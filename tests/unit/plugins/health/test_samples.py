import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.plugins.health import amd, host, nvidia
from slurm_rl.plugins.health.gpus import parse_gpus, parse_nvidia_smi, parse_rocm_smi, select_visible
from slurm_rl.plugins.health.table import TABLE, Check
from slurm_rl.plugins.health.verdict import NodeSpec, Verdict

SAMPLES = Path(__file__).parents[3] / "samples"
NOW = 1740327900.0
"""Unix time after the last line of the recorded kernel log."""
SPEC = NodeSpec("nvidia", gpus=1, num_nodes=2, canary="w", needs_python=True, checked_at=(NOW, NOW + 1))


def read(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


HEALTHY = read("nvidia-smi-q.h100-healthy.txt")


def healthy(*fields: tuple[str, str], text: str = HEALTHY) -> str:
    """Return the healthy H100 with other values in these fields."""
    lines = text.splitlines()
    for key, value in fields:
        index = next(index for index, line in enumerate(lines) if line.strip().startswith(key))
        lines[index] = f"{lines[index].partition(' : ')[0]} : {value}"
    return "\n".join(lines)


def node(num_gpus: int, text: str = HEALTHY) -> str:
    head, _, gpu = text.partition("GPU 00000000:53:00.0\n")
    gpus = (f"GPU 00000000:{n}3:00.0\n{gpu.replace('566e6f65', f'{n}' * 8)}" for n in range(num_gpus))
    return head + "".join(gpus)


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


@pytest.mark.parametrize(("rc", "state"), [(0, "ok"), (9, "bad"), (124, "bad"), (127, "unknown"), (137, "unknown")])
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
    ("field", "value", "state"),
    [
        ("Remapping Failure", "Yes", "bad"),
        ("SRAM Uncorrectable Parity", "2", "bad"),
        ("SRAM Threshold Exceeded", "Yes", "bad"),
        ("DRAM Uncorrectable", "3", "warn"),
        ("Pending Page Blacklist", "Yes", "warn"),
        ("Remapping Failure", "Unknown Error", "unknown"),
        ("Reset Required", "Yes", "bad"),
        ("GPU Recovery Action", "Reboot", "bad"),
        ("GPU Recovery Action", "N/A", "ok"),
    ],
)
def test_ecc_judges_errors_and_requested_recovery(field: str, value: str, state: str) -> None:
    action = "    GPU Recovery Action                   : None\n    Sparse Operation"
    text = healthy((field, value), text=HEALTHY.replace("    Sparse Operation", action))
    assert nvidia.check_ecc(text, 0, SPEC).state == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (read("amdgpu-ras-sysfs.txt"), "bad"),
        (read("amd-smi-metric-ecc.rocm7.2.json"), "ok"),
        (read("amd-smi-metric.mi300x-rocm7.0.json"), "unknown"),
        ('[{"gpu": 0, "ecc": {"total_uncorrectable_count": 2}}]', "bad"),
        ("ue: 1\nce: 0\n", "bad"),
    ],
)
def test_ecc_of_amd_judges_error_counters(text: str, state: str) -> None:
    assert amd.check_ecc(text, 0, SPEC).state == state


@pytest.mark.parametrize(
    ("text", "gpus", "state"),
    [
        (read("rocm-smi-a.mi250.json"), 1, "ok"),
        (read("rocm-smi-a.mi250.json"), 2, "bad"),
        ("kfd 1\n", 2, "bad"),
    ],
)
def test_amd_gpus_counts_cards(text: str, gpus: int, state: str) -> None:
    assert amd.check_gpus(text, 0, NodeSpec("amd", gpus, 2, "w", True, (0, 1))).state == state


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


ON_CPUS = NodeSpec("cpu", 0, 4, "w", needs_python=True, checked_at=(NOW, NOW + 1), shm_bytes=1e7)
_LOCKED = "Max locked memory         65536                {}            bytes\nlimits end"


def _files(**changed: str) -> str:
    values = {"canary": "w", "tmp_writable": "yes", "tmp_kb": "99000000 50000000", "shm_writable": "yes"}
    values |= {"shm_kb": "64000 60000", "clock": str(NOW)} | changed
    return "\n".join(f"{name} {value}" for name, value in values.items() if value)


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),  # a small /dev/shm is a setting
        ({"canary": "other"}, "bad"),
        ({"tmp_writable": ""}, "bad"),
        ({"shm_writable": ""}, "bad"),
        ({"shm_kb": "12000000 900000"}, "bad"),
        ({"shm_kb": "9000 9000"}, "bad"),  # less than the object store
        ({"shm_kb": "64000000 5000000"}, "warn"),
        ({"clock": str(NOW - 60)}, "warn"),
        ({"clock": "soon"}, "unknown"),
    ],
)
def test_files_judges_canary_space_and_clock(changed: dict[str, str], state: str) -> None:
    assert host.check_files(_files(**changed), 0, ON_CPUS).state == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (f"python ok\n{_LOCKED.format(64)}", "ok"),
        (f"python ok\nrdma 2\n{_LOCKED.format(64)}", "warn"),
        (f"python ok\nrdma 2\n{_LOCKED.format('unlimited')}", "ok"),
        ("python ok\nMax open files    512    1024    files\nlimits end", "warn"),
        ("python ok\nMax cpu time    3    600    seconds\nlimits end", "warn"),
        ("python ok, unlocked: no locks\nlimits end", "warn"),
        ("python exit status 127\nlimits end", "bad"),
        ("code missing\npython ok\nlimits end", "bad"),
        ("image missing\npython ok\nlimits end", "bad"),
        ("python ok", "unknown"),
    ],
)
def test_start_judges_code_python_and_limits(text: str, state: str) -> None:
    assert host.check_start(text, 0, ON_CPUS).state == state


def tries(*seconds: float, place: str = "run_dir", status: int = 0) -> str:
    return "\n".join(f"write {place} {status} {NOW:.6f} {NOW + one:.6f}" for one in seconds)


def check_disks(text: str) -> Verdict:
    return host.check_disks(text, 0, ON_CPUS)


def test_disks_keeps_best_try_of_each_place() -> None:
    found = check_disks(f"{tries(0.1)}\n{tries(0.9, 0.2, place='tmp_root')}")
    assert (found.state, dict(found.facts)) == ("ok", {"run_dir": "83.89", "tmp_root": "41.94"})


@pytest.mark.parametrize(
    ("text", "state", "seen"),
    [
        (tries(4.0, 2.0, 8.0), "warn", "writes to run_dir at 4.19 MB/s"),
        (tries(11.0, status=137), "warn", "writes to run_dir at 0.763 MB/s"),  # blocked in the kernel
        (tries(1.0, status=137), "unknown", "the speed of run_dir cannot be measured"),
        (
            f"{tries(0.1, status=1)}\n{tries(0.1, place='tmp_root')}",
            "unknown",
            "the speed of run_dir cannot be measured",
        ),
        ("write run_dir 0 1740327900.N 1740327901.N", "unknown", "no disk was measured"),
        ("sh: 1: dd: not found", "unknown", "no disk was measured"),
    ],
)
def test_disks_warns_of_slow_ones(text: str, state: str, seen: str) -> None:
    found = check_disks(text)
    assert (found.state, found.seen) == (state, seen)


@pytest.mark.parametrize(
    ("seconds", "states"),
    [
        ((0.05, 0.05, 0.05, 8.0), ["ok", "ok", "ok", "bad"]),
        ((4.0, 5.0, 6.0, 7.0), ["warn"] * 4),  # a shared disk, slow for all
        ((0.001, 0.001, 0.5), ["ok"] * 3),  # fast enough
        ((0.001, 8.0), ["ok", "warn"]),  # two nodes are not compared
    ],
)
def test_disks_are_compared_between_nodes(seconds: tuple[float, ...], states: list[str]) -> None:
    found = host.compare_disks({f"n{index}": check_disks(tries(one)) for index, one in enumerate(seconds)})
    assert [verdict.state for verdict in found.values()] == states
    if states[-1] == "bad":
        assert found["n3"].seen == "writes to run_dir at 1.05 MB/s, others 168"
