from pathlib import Path

import pytest

from slurm_rl.node.environment import child_environment, find_accelerator, read_device_uuids
from slurm_rl.node.ports import derive_port_block
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.run_dir.run_dir import RunDir
from tests.plans import plan_of


def environment_of(run: Path, *words: str, rank: int = 0) -> dict[str, str]:
    plan = plan_of("+cluster=slurm_cpu", *words, run_dir=run)
    ports = derive_port_block("7", 1, rank)
    return child_environment(RunDir(run), plan, 1, NodeRole(rank, 2, "7"), ports, "mark", run / "tmp")


def test_child_environment_has_users_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = ["+cluster.env.VLLM_USE_V1=1", "+cluster.env.HF_HUB_OFFLINE=0"]
    nodes = [environment_of(tmp_path, *words, rank=rank) for rank in range(2)]
    assert [(env["VLLM_USE_V1"], env["HF_HUB_OFFLINE"]) for env in nodes] == [("1", "0")] * 2
    assert nodes[0]["SLURM_RL_SPARE_PORTS"] != nodes[1]["SLURM_RL_SPARE_PORTS"]


@pytest.mark.parametrize(
    ("inherited", "seen"), [("/tmp/torchinductor_me", None), ("/scratch/compiled", "/scratch/compiled")]
)
def test_child_environment_drops_torchs_default_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: str, seen: str | None
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", inherited)
    env = environment_of(tmp_path)
    assert env.get("TORCHINDUCTOR_CACHE_DIR") == seen
    assert env["TMPDIR"] == str(tmp_path / "tmp")


def test_read_device_uuids_returns_accessible_gpus_in_order(tmp_path: Path) -> None:
    topology, dri = tmp_path / "nodes", tmp_path / "dri"
    dri.mkdir()
    for index, num_simds, minor in ((0, 0, 0), (2, 304, 128), (10, 304, 136), (9, 304, 129)):
        (topology / str(index)).mkdir(parents=True)
        text = f"simd_count {num_simds}\nunique_id {0xABC0 + index}\ndrm_render_minor {minor}\n"
        (topology / str(index) / "properties").write_text(text)
    for minor in (128, 136):
        (dri / f"renderD{minor}").touch()
    assert read_device_uuids(tmp_path / "absent", tmp_path) == []
    assert read_device_uuids(topology, dri) == ["GPU-000000000000abc2", "GPU-000000000000abca"]


def test_find_accelerator_counts_device_files(tmp_path: Path) -> None:
    assert find_accelerator(tmp_path) == ("cpu", 0)
    (tmp_path / "nvidiactl").touch()
    assert find_accelerator(tmp_path) == ("cpu", 0), "a driver without a device"
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()
    assert find_accelerator(tmp_path) == ("nvidia", 3)
