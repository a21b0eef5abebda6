"""Every recorded sample and its verdict; and what is no answer is never one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_rl.plugins.health.gate import amd, host, nvidia
from slurm_rl.plugins.health.gate.table import TABLE, Check, Parse
from slurm_rl.plugins.health.gate.verdict import Wanted

SAMPLES = Path(__file__).parents[4] / "samples"
# Of the kernel's log: after the last line that has a time.
_NOW = 1740327900.0
WANTED = Wanted("nvidia", gpus=1, num_nodes=2, word="w", needs_python=True, asked=(_NOW, _NOW + 1))


def _said(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def _xml(*fields: tuple[str, str]) -> str:
    """The recorded XML with other values in these elements."""
    text = _said("nvidia-smi-qx.driver575.xml")
    for tag, value in fields:
        head, _, rest = text.partition(f"<{tag}>")
        text = f"{head}<{tag}>{value}{rest[rest.index(f'</{tag}>') :]}"
    return text


_READERS: dict[str, Parse] = {
    "gpus": nvidia.read_gpus,
    "recovery": nvidia.read_recovery,
    "ecc": nvidia.read_ecc,
    "clocks": nvidia.read_clocks,
}


@pytest.mark.parametrize(
    ("name", "states"),
    [
        # gpus, recovery, ecc, clocks
        ("nvidia-smi-q.h100-healthy.txt", "ok unknown ok ok"),
        ("nvidia-smi-q.h100-sw-thermal.txt", "warn unknown unknown warn"),
        ("nvidia-smi-q.h100-power-brake.txt", "ok unknown unknown warn"),
        ("nvidia-smi-q.a10-remap-pending.txt", "unknown unknown warn unknown"),
        ("nvidia-smi-q.h100-cut-short.txt", "unknown unknown unknown unknown"),
        ("nvidia-smi-q.rtx4090-unknown-error.txt", "unknown unknown unknown unknown"),
        ("nvidia-smi-q.retired-pages.txt", "unknown unknown warn unknown"),
        ("nvidia-smi-qx.driver575.xml", "warn ok unknown ok"),
        ("nvidia-smi-missing-gpu.txt", "bad unknown unknown unknown"),
    ],
)
def test_nvidia_smi(name: str, states: str) -> None:
    found = {check: read(_said(name), 0, WANTED) for check, read in _READERS.items()}
    assert [verdict.state for verdict in found.values()] == states.split(), found


def test_a_status_of_nvidia_smi_that_is_not_0_is_bad_and_a_missing_tool_unknown() -> None:
    healthy = _said("nvidia-smi-q.h100-healthy.txt")
    states = {rc: nvidia.read_gpus(healthy, rc, WANTED).state for rc in (0, 9, 15, 124, 127, 137)}
    assert states == {0: "ok", 9: "bad", 15: "bad", 124: "bad", 127: "unknown", 137: "unknown"}


def test_fewer_gpus_than_wanted_are_bad() -> None:
    found = nvidia.read_gpus(_said("nvidia-smi-qx.driver575.xml"), 0, Wanted("nvidia", 2, 2, "w", True, (0, 1)))
    assert (found.state, found.seen) == ("bad", "1 x NVIDIA GeForce RTX 4070 Laptop GPU, not 2")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ([("remapped_row_failure", "Yes")], "bad"),
        ([("sram_uncorrectable_parity", "2")], "bad"),
        ([("sram_threshold_exceeded", "Yes")], "bad"),
        ([("sram_uncorrectable_parity", "0"), ("dram_uncorrectable", "3")], "warn"),
        ([("remapped_row_pending", "Yes"), ("sram_uncorrectable_parity", "0")], "warn"),
        ([("sram_uncorrectable_parity", "0")], "ok"),
        ([("sram_uncorrectable_parity", "0"), ("remapped_row_failure", "Unknown Error")], "unknown"),
    ],
)
def test_errors_of_memory(fields: list[tuple[str, str]], state: str) -> None:
    assert nvidia.read_ecc(_xml(*fields), 0, WANTED).state == state


def test_the_drivers_word_of_repair() -> None:
    states = {
        words: nvidia.read_recovery(_xml(("gpu_recovery_action", words)), 0, WANTED).state
        for words in ("None", "Reboot", "Node Reboot Required", "N/A", "Requested functionality has been deprecated")
    }
    assert list(states.values()) == ["ok", "bad", "bad", "unknown", "unknown"]


def test_links_within_a_node() -> None:
    up, _, down = _said("nvidia-smi-nvlink-status.txt").partition("== the same command on a broken node\n")
    verdicts = [nvidia.read_links(text, 0, WANTED) for text in (up, down, up + down)]
    assert [verdict.state for verdict in verdicts] == ["ok", "unknown", "bad"]
    # Alone it may be a card without links; beside nodes that have them it is bad.
    compared = host.compare_facts({"n1": verdicts[0], "n2": verdicts[0], "n3": verdicts[1]})
    assert [compared[name].state for name in ("n1", "n2", "n3")] == ["ok", "ok", "bad"]
    assert nvidia.read_links(_said("dcgmi-nvlink-s.down.txt"), 0, WANTED).state == "bad"


def test_the_kernels_log() -> None:
    lines = _said("dmesg.xid.txt")
    found = nvidia.read_xid(f"uptime 6085200.0\n{lines}", 0, WANTED)
    # Those of 2022 and 2024 are over, 13 and 31 are faults of programs.
    assert (found.state, found.seen) == ("bad", "Xid 79, 1 times in 24 h; Xid 119, 2 times in 24 h")
    states = {
        number: nvidia.read_xid(f"uptime 10\n[    5.0] NVRM: Xid (PCI:0000:01:00): {number}, x", 0, WANTED).state
        for number in (13, 31, 43, 63, 94, 48, 95)
    }
    assert list(states.values()) == ["ok", "ok", "ok", "warn", "warn", "bad", "bad"]
    old = "uptime 90000\n[  100.0] NVRM: Xid (PCI:0000:01:00): 79, x"
    assert nvidia.read_xid(old, 0, WANTED).state == "ok"
    assert nvidia.read_xid("dmesg: read kernel buffer failed: Operation not permitted", 1, WANTED).state == "unknown"
    flaps = nvidia.read_xid(f"uptime 10\n{_said('syslog.ib-flap.txt')}", 0, WANTED)
    assert (flaps.state, flaps.seen) == ("warn", "a link went down 6 times")


@pytest.mark.parametrize(
    ("name", "state"),
    [("v3-pass", "ok"), ("v3-fail", "bad"), ("v3-skip", "unknown"), ("v4-shape", "ok")],
)
def test_dcgm(name: str, state: str) -> None:
    assert nvidia.read_dcgm(_said(f"dcgmi-diag.{name}.json"), 0, WANTED).state == state


def test_ports_are_held_against_those_of_other_nodes() -> None:
    up = host.read_ports("mlx5_0:1 4: ACTIVE|400 Gb/sec (4X NDR)|0\nmlx5_1:1 1: DOWN|10 Gb/sec|3", 0, WANTED)
    slow = host.read_ports("mlx5_0:1 4: ACTIVE|200 Gb/sec (2X NDR)|0\nmlx5_1:1 1: DOWN|10 Gb/sec|3", 0, WANTED)
    down = host.read_ports("mlx5_0:1 1: DOWN|10 Gb/sec (4X SDR)|0\nmlx5_1:1 1: DOWN|10 Gb/sec|3", 0, WANTED)
    none = host.read_ports("", 0, WANTED)
    found = host.compare_ports({"n1": up, "n2": up, "n3": up, "n4": up, "n5": slow, "n6": down, "n7": none})
    assert [verdict.state for verdict in found.values()] == ["ok", "ok", "ok", "ok", "warn", "bad", "unknown"]
    ibstat = host.read_ports(_said("ibstat.h100-some-down.txt"), 0, WANTED)
    assert ibstat.facts["port mlx5_11"] == "down"
    assert ibstat.seen == "10 of 12 ports active"


def test_amd() -> None:
    ras = {
        name: amd.read_ras(_said(name), 0, WANTED).state
        for name in (
            "amdgpu-ras-sysfs.txt",
            "amd-smi-metric-ecc.rocm7.2.json",
            "amd-smi-metric.mi300x-rocm7.0.json",
            "amd-smi-xgmi-and-pcie.shapes.json",
        )
    }
    assert list(ras.values()) == ["bad", "ok", "unknown", "unknown"]
    assert amd.read_ras('[{"gpu": 0, "xgmi_err": {"read_error_count": 2}}]', 0, WANTED).state == "warn"
    assert amd.read_ras("ue: 0\nce: 1001\n", 0, WANTED).state == "warn"
    assert amd.read_ras("ue: 1\nce: 0\n", 0, WANTED).state == "bad"
    assert amd.read_gpus(_said("rocm-smi-a.mi250.json"), 0, WANTED).state == "ok"
    assert amd.read_gpus(f"kfd 8\n{_said('rocm-smi.mi300x.json')}", 0, WANTED).state == "ok"
    two = Wanted("amd", 2, 2, "w", True, (0, 1))
    assert amd.read_gpus(_said("rocm-smi-a.mi250.json"), 0, two).state == "bad"


_LOCKED = "Max locked memory         65536                {}            bytes\nlimits end"


def _files(**changed: str) -> str:
    said = {"canary": "w", "tmp_writable": "yes", "tmp_kb": "99000000 50000000", "shm_writable": "yes"}
    said |= {"shm_kb": "64000 60000", "clock": str(_NOW)} | changed
    return "\n".join(f"{name} {value}" for name, value in said.items() if value)


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),  # a small /dev/shm is how it was made
        ({"canary": "other"}, "bad"),
        ({"canary": ""}, "bad"),
        ({"tmp_writable": ""}, "bad"),
        ({"shm_writable": ""}, "bad"),
        ({"shm_kb": "12000000 900000"}, "bad"),
        ({"shm_kb": "64000000 5000000"}, "warn"),
        ({"clock": str(_NOW - 60)}, "warn"),
        ({"clock": "soon"}, "unknown"),
        ({"shm_kb": "-"}, "unknown"),
    ],
)
def test_files(changed: dict[str, str], state: str) -> None:
    assert host.read_files(_files(**changed), 0, WANTED).state == state


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (f"python ok\n{_LOCKED.format(64)}", "ok"),
        (f"python ok\nrdma 2\n{_LOCKED.format(64)}", "warn"),
        (f"python ok\nrdma 2\n{_LOCKED.format('unlimited')}", "ok"),
        ("python ok\nMax open files    512    1024    files\nlimits end", "warn"),
        ("python ok\nMax cpu time    3    unlimited    seconds\nlimits end", "ok"),
        ("python ok\nMax cpu time    3    600    seconds\nlimits end", "warn"),
        ("python ok, unlocked: no locks\nlimits end", "warn"),
        ("python exit status 127\nlimits end", "bad"),
        ("code missing\npython ok\nlimits end", "bad"),
        ("image missing\npython ok\nlimits end", "bad"),
        ("python ok", "unknown"),
    ],
)
def test_start(said: str, state: str) -> None:
    assert host.read_start(said, 0, WANTED).state == state


_CHECKS = [check for check in TABLE if check.parse]


@pytest.mark.parametrize("check", _CHECKS, ids=lambda check: f"{check.name}-{check.vendor}")
@settings(max_examples=30)
@given(text=st.text(max_size=200) | st.binary(max_size=100).map(lambda raw: raw.decode(errors="replace")))
def test_garbage_is_unknown(check: Check, text: str) -> None:
    assert check.parse
    assert check.parse(text, 0, WANTED).state == "unknown"
    for rc in (1, 9, 124, 127, 137):
        assert check.parse(text, rc, WANTED).state not in ("ok", "warn")


_OF_CHECK = {
    ("gpus", "nvidia"): "nvidia-smi-qx.driver575.xml",
    ("recovery", "nvidia"): "nvidia-smi-qx.driver575.xml",
    ("ecc", "nvidia"): "nvidia-smi-qx.driver575.xml",
    ("clocks", "nvidia"): "nvidia-smi-qx.driver575.xml",
    ("dcgm", "nvidia"): "dcgmi-diag.v3-fail.json",
    ("gpus", "amd"): "rocm-smi.mi300x.json",
    ("ras", "amd"): "amd-smi-metric-ecc.rocm7.2.json",
}


@pytest.mark.parametrize(("name", "vendor"), _OF_CHECK)
@settings(max_examples=30)
@given(share=st.floats(0.0, 0.97))
def test_an_answer_that_is_cut_short_is_unknown(name: str, vendor: str, share: float) -> None:
    check = next(check for check in TABLE if (check.name, check.vendor) == (name, vendor))
    text = _said(_OF_CHECK[name, vendor]).strip()
    assert check.parse
    assert check.parse(text[: int(share * len(text))], 0, WANTED).state == "unknown"
