"""AMD devices from the kernel's table: CPUs left out, devices that may not be opened left out, numeric order."""

from __future__ import annotations

from pathlib import Path

from slurm_rl.node.environment import read_device_uuids


def make_node(topology: Path, index: int, simd_count: int, unique_id: int, minor: int) -> None:
    folder = topology / str(index)
    folder.mkdir(parents=True)
    text = f"simd_count {simd_count}\nunique_id {unique_id}\ndrm_render_minor {minor}\n"
    (folder / "properties").write_text(text)


def test_gpus_that_may_be_opened_in_order(tmp_path: Path) -> None:
    topology, dri = tmp_path / "nodes", tmp_path / "dri"
    dri.mkdir()
    make_node(topology, 0, 0, 0, 0)
    for index, minor in ((2, 128), (10, 136), (9, 129)):
        make_node(topology, index, 304, 0xABC0 + index, minor)
    for minor in (128, 136):
        (dri / f"renderD{minor}").touch()
    assert read_device_uuids(topology, dri) == ["GPU-000000000000abc2", "GPU-000000000000abca"]


def test_no_driver_no_devices(tmp_path: Path) -> None:
    assert read_device_uuids(tmp_path / "absent", tmp_path) == []
