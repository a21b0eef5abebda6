import stat
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.launch.machines.allocation import why_run_dir_must_be_shared
from slurm_rl.launch.machines.nodes import Outbox, files_for_all, take_file
from slurm_rl.launch.machines.place import derive_ray_token, find_difference, head_secret, secret_file, worker_secret
from slurm_rl.node.network import interface_of, network_environment
from slurm_rl.node.rank_discovery import NodeRole
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests import plans

ENV = {"SLURM_RL_TOKEN": "a" * 20}


def plan_of(*words: str) -> JobPlan:
    return plans.plan_of("cluster.launcher=manual", "cluster.num_nodes=2", *words)


def test_secret_is_variable_or_private_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert head_secret(run, ENV) == "a" * 20
    assert not secret_file(run).exists()
    made = head_secret(run, {})
    assert len(made) == 64 and head_secret(run, {}) == made
    assert stat.S_IMODE(secret_file(run).stat().st_mode) == 0o600
    assert stat.S_IMODE(run.secrets.stat().st_mode) == 0o700
    assert worker_secret(str(run.path), {}, 0.1, lambda: False) == made
    assert worker_secret(None, ENV, 0.1, lambda: False) == "a" * 20


def test_invalid_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters; got 5 characters"):
        head_secret(RunDir(tmp_path), {"SLURM_RL_TOKEN": "short"})
    with pytest.raises(ConfigError, match="SLURM_RL_TOKEN must be set to the same secret on every machine"):
        worker_secret(None, {}, 3600.0, lambda: False)
    with pytest.raises(ConfigError, match="machines-token"):
        worker_secret(str(tmp_path), {}, 0.0, lambda: False)


def test_ray_token_belongs_to_one_attempt() -> None:
    tokens = {derive_ray_token(*key) for key in [("s", "j", 1), ("s", "j", 2), ("s", "k", 1), ("t", "j", 1)]}
    assert len(tokens) == 4 and all(len(token) == 64 for token in tokens)


def test_first_difference_is_named_with_both_values() -> None:
    head = load_config(["+exp=demo", "cluster.num_nodes=2", "run_dir=/a"]).model_dump(mode="json")
    assert find_difference(head, load_config(["+exp=demo", "cluster.num_nodes=3"]).model_dump(mode="json")) is None
    other = load_config(["+exp=demo", "optim.lr=1e-3", "run_dir=/a"]).model_dump(mode="json")
    assert find_difference(head, other) == "optim.lr=0.001, on the head 0.0006"


def test_folder_must_be_shared_for_several_nodes() -> None:
    writing = plan_of("cluster.num_nodes=3", "policy.num_workers=2")
    said = str(why_run_dir_must_be_shared(writing, builds_model=False))
    assert "policy-1 on node 1 writes its part of the checkpoints" in said
    sampling = plan_of("rollout.num_engines=1")
    assert [actor.node for actor in sampling.actors] == [0, 1]
    assert "loads the model" in str(why_run_dir_must_be_shared(sampling, builds_model=True))
    assert why_run_dir_must_be_shared(sampling, builds_model=False) is None
    assert why_run_dir_must_be_shared(plan_of("cluster.num_nodes=1"), builds_model=True) is None


def test_file_is_sent_once_per_content(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(1)
    outbox = Outbox(files_for_all(attempt))
    assert list(outbox.news()) == []
    write_json(attempt.head, {"port": 1})
    assert list(outbox.news()) == [("head.json", {"port": 1})]
    assert list(outbox.news()) == []
    write_json(attempt.head, {"port": 2})
    assert list(outbox.news()) == [("head.json", {"port": 2})]


@pytest.mark.parametrize("name", ["../../plan.json", "/etc/passwd", "end.json", "node-1.json"])
def test_message_writes_no_other_file(tmp_path: Path, name: str) -> None:
    attempt = RunDir(tmp_path).attempt(1)
    take_file(attempt, name, {"x": 1}, files_for_all(attempt))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_device_is_that_of_route_unless_named() -> None:
    head = NodeRole(0, 2, "job", ("127.0.0.1", "127.0.0.1"))
    plan = plan_of()
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert network_environment(plan, head, {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert network_environment(plan, head, {"GLOO_SOCKET_IFNAME": "lo"}) == {}
    assert network_environment(plan, NodeRole(0, 1, "job"), {}) == {}
    gpus = replace(plan, accelerator="nvidia")
    for on_slurm in (replace(plan, launcher="slurm"), replace(gpus, launcher="slurm")):
        assert network_environment(on_slurm, head, {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert network_environment(gpus, head, {}) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert network_environment(gpus, head, {"NCCL_SOCKET_IFNAME": "ib0"}) == {"GLOO_SOCKET_IFNAME": "lo"}
    with pytest.raises(BringUpError, match=r"podnet1; this one has .*lo"):
        network_environment(plan, head, {"GLOO_SOCKET_IFNAME": "podnet1"})
