"""The environment that a node agent gives to all it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.environment import child_environment
from slurm_rl.node.ports import derive_port_block
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.run_dir.run_dir import RunDir


def environment_of(run: Path, *words: str, rank: int = 0) -> dict[str, str]:
    config = load_config(["+exp=demo", "+cluster=slurm_cpu", *words])
    plan = build_plan(config, str(run), SubmitFacts("python", 2, "test"))
    ports = derive_port_block("7", 1, rank)
    return child_environment(RunDir(run), plan, 1, NodeRole(rank, 2, "7"), ports, "mark", run / "tmp")


def test_what_the_user_sets_is_there_on_every_node_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "of one node's shell")
    words = ["+cluster.env.VLLM_USE_V1=1", "+cluster.env.HF_HUB_OFFLINE=0"]
    nodes = [environment_of(tmp_path, *words, rank=rank) for rank in range(2)]
    assert [(env["VLLM_USE_V1"], env["HF_HUB_OFFLINE"]) for env in nodes] == [("1", "0")] * 2
    # And every node offers free ports of its own block.
    assert nodes[0]["SLURM_RL_SPARE_PORTS"] != nodes[1]["SLURM_RL_SPARE_PORTS"]


@pytest.mark.parametrize(
    ("handed_on", "seen"), [("/tmp/torchinductor_me", None), ("/scratch/compiled", "/scratch/compiled")]
)
def test_a_compile_cache_counts_if_the_user_chose_it_not_if_torch_did_where_the_run_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_on: str, seen: str | None
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", handed_on)
    env = environment_of(tmp_path)
    assert env.get("TORCHINDUCTOR_CACHE_DIR") == seen
    assert env["TMPDIR"] == str(tmp_path / "tmp")
