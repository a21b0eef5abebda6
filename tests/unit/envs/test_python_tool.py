import json
from collections.abc import Iterator

import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step, ToolCall
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.schemas import build_schema
from slurm_rl.envs.tools import load_tools
from slurm_rl.envs.worker import Call


@pytest.fixture(scope="module")
def pool() -> Iterator[EnvironmentPool]:
    schemas = [build_schema(name, tool) for name, tool in load_tools("python").items()]
    assert schemas[0]["function"]["parameters"]["required"] == ["code"]
    with EnvironmentPool(EnvironmentConfig(tools="python", timeout_s=60.0), schemas) as pool:
        yield pool


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("print(sum(range(10)))", "45\n"),
        ("print('a')\n1 / 0", "a\n\nZeroDivisionError: division by zero"),
        ("open('/etc/passwd')", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('x' * 100_000)", "printed more than 10,000 bytes"),
        ("while True: pass", "ended after 4 s"),
    ],
)
def test_code_runs_in_sandbox_and_returns_output(pool: EnvironmentPool, code: str, seen: str) -> None:
    call = ToolCall("python", json.dumps({"code": code}))
    row = Row(index=0, prompt="?", answer="")
    [step] = pool.play([Call(episode=code, row=row, seed=1, replies=[Reply(text="", calls=(call,))])])
    assert isinstance(step, Step) and step.calls[0].error is None and seen in step.calls[0].result


def test_calls_share_no_state(pool: EnvironmentPool) -> None:
    calls = tuple(ToolCall("python", json.dumps({"code": code})) for code in ("x = 3", "print(x)"))
    row = Row(index=0, prompt="?", answer="")
    [step] = pool.play([Call(episode="kept", row=row, seed=1, replies=[Reply(text="", calls=calls)])])
    assert isinstance(step, Step) and "NameError" in step.calls[1].result
