from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import slurm_rl
from slurm_rl.workers.ray_driver import Cluster


def test_actors_import_code_of_driver_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray passes the directory of `ray.init` to its workers; in a checkout they would import code under edit."""
    seen: list[Path] = []
    monkeypatch.setattr(ray, "init", lambda **_: seen.append(Path.cwd()))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    cluster: Any = Cluster.__new__(Cluster)
    cluster.plan, cluster.stop = SimpleNamespace(limits=SimpleNamespace(start_timeout_s=1.0)), None
    cluster.nodes = SimpleNamespace(namespace=None, wait=lambda deadline, stop: None)
    cluster.connect()
    assert seen == [Path(slurm_rl.__file__).parents[1]]
    assert Path.cwd() == tmp_path
