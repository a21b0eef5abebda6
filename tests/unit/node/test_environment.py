"""The environment that a node agent gives to all it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.node.discovery import NodeRole
from slurm_rl.node.environment import child_environment
from slurm_rl.node.ports import choose_ports
from slurm_rl.plan.job import SubmitFacts, build_plan
from slurm_rl.run_dir import RunDir


def environment_of(run: Path) -> dict[str, str]:
    plan = build_plan(load_config(["+exp=demo", "+cluster=slurm_cpu"]), str(run), SubmitFacts("python", 2, "test"))
    role = NodeRole(0, 2, "7")
    return child_environment(RunDir(run), plan, 1, role, choose_ports("7", 1), "mark", run / "tmp")


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
