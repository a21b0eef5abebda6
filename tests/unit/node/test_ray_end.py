"""Why Ray ended, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.node.ray_cluster import explain_ray_end
from slurm_rl.plan.job import SubmitFacts, build_plan


@pytest.mark.parametrize(("python", "is_told"), [("/envs/my env/bin/python", True), ("/envs/mine/bin/python", False)])
def test_an_environment_whose_path_has_a_space_is_told(tmp_path: Path, python: str, is_told: bool) -> None:
    log = tmp_path / "ray-0.log"
    log.write_text("----- BEGIN ray_client_server.err tail (exit code(s)=127) -----\n")
    error = explain_ray_end(
        build_plan(load_config(["+exp=demo"]), "/r", SubmitFacts(python, 4, "1")), log, 1, "the head"
    )
    assert "ray_client_server died, exit code 127" in str(error)
    assert (f"make the environment of {python} at a path without spaces" in str(error)) == is_told
