"""What ranks on GPUs say, held against the data sheets: the GPUs are made up, the tool's words are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plugins.health.doctor import judge
from slurm_rl.plugins.health.doctor.finding import Finding, Question
from slurm_rl.plugins.health.doctor.judge import CLOCKS, Outcome, judge_ranks
from slurm_rl.plugins.health.doctor.peaks import find_peak, least_link_gb_s
from slurm_rl.plugins.health.doctor.rank import BETWEEN, MATMUL, TORCH, WITHIN
from tests.unit.plugins.health.doctor.kit import question
from tests.unit.plugins.health.doctor.test_smi import read

H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"


def ranks_of(count: int, name: str = H100, memory_gb: float = 85, **changed: Any) -> list[Outcome]:
    """Sound ones of one node of two; `changed` goes over what the last one says."""
    found = []
    for place in range(count):
        last = changed if place == count - 1 else {}
        torch = {"version": "2.13", "build": "13.0", "count": count, "name": name, "uuid": "", "free": 8e10}
        torch |= {"total": memory_gb * 1e9, "bfloat16": True}
        speed = {"is_right": True, "world": count}
        steps: dict[str, dict[str, Any]] = {
            TORCH: torch,
            MATMUL: {"tflops": 700.0, "is_same": True},
            WITHIN: {"gb_s": 430.0, **speed},
            BETWEEN: {"gb_s": 350.0, **speed, "world": 2 * count, "interface": "eth0"},
        }
        found.append(Outcome({step: said | last.get(step, {}) for step, said in steps.items()}))
    return found


def look(asked: Question, ranks: list[Outcome], load: str = "") -> dict[str, Finding]:
    return {one.what: one for one in judge_ranks(asked, ranks, load)}


@pytest.fixture
def h100s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Question:
    monkeypatch.setattr(judge, "read_ports", lambda: {f"mlx5_{port}:1": (True, 400.0) for port in range(8)})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return question(tmp_path, "+cluster=nvidia_h100", num_nodes=2)


def test_eight_sound_gpus_are_well(h100s: Question) -> None:
    found = look(h100s, ranks_of(8), read("nvidia-smi-q.h100-healthy.txt").replace("345 MHz", "1755 MHz"))
    assert {name: one.state for name, one in found.items()} == dict.fromkeys([*found], "ok")
    assert list(found) == [TORCH, MATMUL, CLOCKS, WITHIN, BETWEEN]
    assert found[CLOCKS].seen == "1755 of 1980 MHz at work"


@pytest.mark.parametrize(
    ("changed", "what", "said"),
    [
        ({MATMUL: {"tflops": 300.0}}, MATMUL, "GPU 7: its clocks"),
        ({MATMUL: {"is_same": False}}, MATMUL, "drained"),
        ({WITHIN: {"gb_s": 40.0}}, WITHIN, "nvlink"),
        ({WITHIN: {"is_right": False}}, WITHIN, "nvlink"),
        ({BETWEEN: {"gb_s": 3.0}}, BETWEEN, "rdma and memlock"),
        ({TORCH: {"total": 4e10}}, TORCH, "image check"),
        ({TORCH: {"bfloat16": False}}, TORCH, "image check"),
    ],
)
def test_what_one_of_eight_cannot_do_is_wrong_with_what_to_do(
    h100s: Question, changed: dict[str, Any], what: str, said: str
) -> None:
    found = look(h100s, ranks_of(8, **changed))
    assert [one.what for one in found.values() if one.state == "wrong"] == [what]
    assert said in found[what].action


def test_a_clock_at_work_below_half_is_wrong_and_a_brake_alone_is_not(h100s: Question) -> None:
    braked = read("nvidia-smi-q.h100-healthy.txt").replace(
        "Brake Slowdown           : Not Active", "Brake Slowdown : Active"
    )
    braked = braked.replace("Power Brake Slowdown       : Not Active", "Power Brake Slowdown       : Active")
    assert look(h100s, ranks_of(8), braked)[CLOCKS].state == "wrong", "345 MHz"
    found = look(h100s, ranks_of(8), braked.replace("345 MHz", "1900 MHz"))[CLOCKS]
    assert found.state == "ok" and "HW Power Brake Slowdown" in found.seen


def test_a_rank_that_hangs_is_named_and_what_comes_after_is_not_looked_at(h100s: Question) -> None:
    ranks = ranks_of(8)
    ranks[3] = Outcome({TORCH: ranks[3].done[TORCH]}, late=MATMUL)
    for place in (0, 1, 2, 4, 5, 6, 7):
        ranks[place] = Outcome({step: ranks[place].done[step] for step in (TORCH, MATMUL)})
    found = look(h100s, ranks)
    assert found[MATMUL].state == "wrong" and "3: it hangs" in found[MATMUL].seen
    assert [found[name].state for name in (WITHIN, BETWEEN)] == ["unseen", "unseen"]
    assert found[WITHIN].seen == f"not reached: rank 3 stopped in {MATMUL}"


def test_without_rdma_and_with_a_gpu_that_no_sheet_has_nothing_is_expected(
    h100s: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "read_ports", dict)
    found = look(h100s, ranks_of(8, "NVIDIA Z9", **{BETWEEN: {"gb_s": 0.1}, MATMUL: {"tflops": 1.0}}))
    assert {one.state for one in found.values()} == {"ok", "unseen"}
    assert "not known" in found[MATMUL].should


def test_a_single_gpu_has_nobody_to_add_with(tmp_path: Path) -> None:
    found = look(question(tmp_path, "+cluster=nvidia_h100", "cluster.gpus_per_node=2"), ranks_of(1))
    assert [found[name].state for name in (WITHIN, BETWEEN)] == ["unseen", "unseen"]


def test_links_without_a_switch_add_up_over_the_others() -> None:
    assert least_link_gb_s(MI300X, 8) == 7 * (least_link_gb_s(MI300X, 2) or 0)
    assert least_link_gb_s(H100, 8) == least_link_gb_s(H100, 2)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        (H100, 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        (MI300X, 1307),
        ("AMD Instinct MI250X", 191),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", 181),
    ],
)
def test_the_names_of_drivers_are_known(name: str, tflops: float) -> None:
    peak = find_peak(name)
    assert peak is not None and peak.tflops == tflops
