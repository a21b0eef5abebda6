from pathlib import Path

import pytest
from ray._private import node, ray_constants, services
from ray.scripts import scripts

from slurm_rl.config.load import load_config
from slurm_rl.node.ray_cluster import describe_ray_end, explain_ray_end
from slurm_rl.node.ray_start import with_agent_port, with_timeout
from slurm_rl.plan.build_plan import SubmitFacts, build_plan


@pytest.mark.parametrize(("python", "is_named"), [("/envs/my env/bin/python", True), ("/envs/mine/bin/python", False)])
def test_explain_ray_end_names_path_with_spaces(tmp_path: Path, python: str, is_named: bool) -> None:
    log = tmp_path / "ray-0.log"
    log.write_text("----- BEGIN runtime_env_agent.err tail (exit code(s)=127) -----\n")
    plan = build_plan(load_config(["+exp=demo"]), "/r", SubmitFacts(python, 4, "1"))
    error = str(explain_ray_end(plan, log, 1, "the head"))
    assert "runtime_env_agent died, exit code 127" in error
    assert (f"make the environment of {python} at a path without spaces" in error) == is_named


def test_describe_ray_end_falls_back_to_last_line(tmp_path: Path) -> None:
    log = tmp_path / "ray-1.log"
    log.write_text("Traceback\nraylet died, exit code 1\n")
    assert describe_ray_end(log, 1) == "exit status 1: raylet died, exit code 1"
    assert describe_ray_end(tmp_path / "none", 1) == "exit status 1"


def test_with_timeout_retries_until_raylet_ends() -> None:
    answers = iter([RuntimeError(), RuntimeError(), "node"])

    def get_node(address: str) -> str:
        if isinstance(answer := next(answers, RuntimeError(address)), RuntimeError):
            raise answer
        return answer

    assert with_timeout(get_node, lambda: None, 60)("a") == "node"
    with pytest.raises(SystemExit, match="raylet died, exit code 7"):
        with_timeout(get_node, lambda: 7, 60)("a")
    with pytest.raises(RuntimeError, match="a"):
        with_timeout(get_node, lambda: None, 0)("a")


def test_with_agent_port_adds_known_flag_only(tmp_path: Path) -> None:
    other = tmp_path / "raylet"
    other.write_bytes(b"a raylet of another version: dashboard_agent_listen_port is a field of its records")
    commands = []
    start = with_agent_port(lambda command, *_, **fields: commands.append(command), ["--dashboard-agent-listen-port=7"])
    for binary, kind in ((services.RAYLET_EXECUTABLE, "raylet"), (str(other), "raylet"), ("/python", "dashboard")):
        start([binary, "--a"], kind, fate_share=True)
    assert [command[2:] for command in commands] == [["--dashboard_agent_listen_port=7"], [], []]


def test_ray_has_replaced_functions() -> None:
    text = Path(node.__file__).read_text()
    assert "ray._private.services.get_node(" in text and "ray._private.services.start_raylet(" in text
    text = Path(services.__file__).read_text()
    assert "process_info = start_ray_process(" in text[text.index("def start_raylet(") :]
    assert ray_constants.PROCESS_TYPE_RAYLET == "raylet"
    assert "has_ray_client = get_ray_client_dependency_error() is None" in Path(scripts.__file__).read_text()
