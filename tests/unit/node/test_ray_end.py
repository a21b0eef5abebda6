"""Why Ray ended, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray._private import node, ray_constants, services
from ray.scripts import scripts

from slurm_rl.config.load import load_config
from slurm_rl.node.ray_cluster import describe_ray_end, explain_ray_end
from slurm_rl.node.ray_start import tell_port, wait_patiently
from slurm_rl.plan.job import SubmitFacts, build_plan


@pytest.mark.parametrize(("python", "is_told"), [("/envs/my env/bin/python", True), ("/envs/mine/bin/python", False)])
def test_an_environment_whose_path_has_a_space_is_told(tmp_path: Path, python: str, is_told: bool) -> None:
    log = tmp_path / "ray-0.log"
    log.write_text("----- BEGIN runtime_env_agent.err tail (exit code(s)=127) -----\n")
    error = explain_ray_end(
        build_plan(load_config(["+exp=demo"]), "/r", SubmitFacts(python, 4, "1")), log, 1, "the head"
    )
    assert "runtime_env_agent died, exit code 127" in str(error)
    assert (f"make the environment of {python} at a path without spaces" in str(error)) == is_told


def test_the_last_word_of_ray_is_its_cause_where_no_process_is_named(tmp_path: Path) -> None:
    log = tmp_path / "ray-1.log"
    log.write_text("Traceback\nraylet died, exit code 1\n")
    assert describe_ray_end(log, 1) == "exit status 1: raylet died, exit code 1"
    assert describe_ray_end(tmp_path / "none", 1) == "exit status 1"


def test_a_node_is_waited_for_until_its_raylet_ends_or_the_deadline() -> None:
    answers = iter([RuntimeError(), RuntimeError(), "node"])

    def get_node(address: str) -> str:
        if isinstance(answer := next(answers, RuntimeError(address)), RuntimeError):
            raise answer
        return answer

    assert wait_patiently(get_node, lambda: None, 60)("a") == "node"
    with pytest.raises(SystemExit, match="raylet died, exit code 7"):
        wait_patiently(get_node, lambda: 7, 60)("a")
    with pytest.raises(RuntimeError, match="a"):
        wait_patiently(get_node, lambda: None, 0)("a")


def test_a_raylet_that_takes_it_is_told_the_port_of_its_agent(tmp_path: Path) -> None:
    other = tmp_path / "raylet"
    other.write_bytes(b"a raylet of another version: dashboard_agent_listen_port is a field of its records")
    asked = []
    start = tell_port(
        lambda command, *_, **fields: asked.append((command, fields)), ["--dashboard-agent-listen-port=7"]
    )
    for binary, kind in ((services.RAYLET_EXECUTABLE, "raylet"), (str(other), "raylet"), ("/python", "dashboard")):
        start([binary, "--a"], kind, fate_share=True)
    assert [command[2:] for command, _ in asked] == [["--dashboard_agent_listen_port=7"], [], []]
    assert all(fields == {"fate_share": True} for _, fields in asked)
    tell_port(lambda command, *_, **fields: asked.append((command, fields)), [])([str(other), "--a"], "raylet")
    assert asked[-1][0] == [str(other), "--a"]


def test_ray_asks_what_is_replaced() -> None:
    """`ray._private.node` calls both by these names, and `ray start` asks for its client so."""
    text = Path(node.__file__).read_text()
    assert "ray._private.services.get_node(" in text and "ray._private.services.start_raylet(" in text
    text = Path(services.__file__).read_text()
    assert "process_info = start_ray_process(" in text[text.index("def start_raylet(") :]
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    assert "has_ray_client = get_ray_client_dependency_error() is None" in Path(scripts.__file__).read_text()
