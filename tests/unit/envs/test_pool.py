"""Environments in real processes: each failure affects only its own call."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environment import Reply, Row, Step, ToolCall
from slurm_rl.envs.facts import Facts
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.steps import Answer, Said, check_step, decode, encode, pack_answer
from slurm_rl.envs.worker import Call
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.results import Failure

FILE = Path(__file__).with_name("worlds.py")


def config(name: str, timeout_s: float = 60.0, num_workers: int = 1) -> EnvironmentConfig:
    return EnvironmentConfig(name=f"{FILE}:{name}", timeout_s=timeout_s, num_workers=num_workers)


def call(episode: str, *replies: str, last: int = 2, prompt: str = "count") -> Call:
    row = Row(index=0, prompt=prompt, answer=str(last))
    said = [Reply(text=text, call_id=f"{episode}.{turn}") for turn, text in enumerate(replies)]
    return Call(episode=episode, row=row, seed=1, replies=said)


@pytest.fixture(scope="module")
def bad() -> Iterator[EnvironmentPool]:
    with EnvironmentPool(config("Bad", timeout_s=2.0)) as pool:
        yield pool


def test_episode_continues_in_its_environment(bad: EnvironmentPool) -> None:
    assert bad.play([call("a", "x"), call("b", "y")]) == [
        Step("x", None, False, {"replies": 1.0}),
        Step("y", None, False, {"replies": 1.0}),
    ]
    assert bad.play([call("b", "y", "z")]) == [Step("y z", 1.0, True, {"replies": 2.0})]
    assert bad.play([]) == []


def test_forgotten_environment_is_rebuilt_from_replies(bad: EnvironmentPool) -> None:
    bad.play([call("a", "x")])
    bad.forget(["a"])
    assert bad.play([call("a", "x", "y")]) == [Step("x y", 1.0, True, {"replies": 2.0})]


@pytest.mark.parametrize(
    ("reply", "cause", "word"),
    [
        ("raise", "exception", "KeyError: 'no such door'"),
        ("hang", "hang", "no step within 2 s"),
        ("die", "crash", "exit code -9"),
        ("nothing", "bad score", "must return a slurm_rl.envs.environment.Step; got None"),
        ("nan", "bad score", "finite number or None; got nan"),
        *((reply, "crash", "") for reply in ("exit", "os exit", "interrupt", "close", "forks and dies")),
        *((reply, "crash", "") for reply in ("writes to the wire", "answers for another")),
        *((reply, "hang", "") for reply in ("stop", "loop")),
        *((reply, "exception", "") for reply in ("stop iteration", "cancel", "recursion", "lambda")),
        *((reply, "exception", "") for reply in ("base exception", "unreadable exception")),
    ],
)
def test_faulty_environment_fails_only_its_call(bad: EnvironmentPool, reply: str, cause: str, word: str) -> None:
    first = [call(f"{reply}{place}", "x") for place in range(3)]
    bad.play(first)
    second = [call(f"{reply}0", "x", "y"), call(f"{reply}1", "x", reply), call(f"{reply}2", "x", "y")]
    before, failed, after = bad.play(second)
    assert before == after == Step("x y", 1.0, True, {"replies": 2.0})
    assert isinstance(failed, Failure) and failed.cause == cause and failed.detail and word in failed.detail


INVALID: list[Any] = [
    *(Step(observation) for observation in (7, "\ud800", "x" * 1_000_001, b"x", [{"role": "user"}])),
    *(Step([{"role": "user", "content": "x", "more": value}]) for value in (object(), 10**400)),
    *(Step("", reward) for reward in ("1", 10**400, float("inf"))),
    Step("", 1.0, "yes"),  # type: ignore[arg-type]
    *(Step("", 1.0, True, {name: 1.0}) for name in (1, "\ud800", "x" * 65)),
    *(Step("", 1.0, True, scores) for scores in (5, {"a": float("inf")}, {str(number): 1.0 for number in range(65)})),
    Step("x", agent="a\nb"),
    Step("x", calls=(ToolCall("add", 3),)),  # type: ignore[arg-type]
    (step for step in [Step()]),
]


@pytest.mark.parametrize("step", INVALID)
def test_invalid_step_is_failure_never_number(step: Any) -> None:
    [found] = decode(encode(Said([pack_answer(Answer("a", check_step(step)))]))).read()
    assert isinstance(found.outcome, Failure) and found.outcome.cause == "bad score" and found.outcome.detail


def test_observation_of_class_of_users_arrives_as_text(bad: EnvironmentPool) -> None:
    [step] = bad.play([call("mine", "own class")])
    assert isinstance(step, Step) and type(step.observation) is str and step.observation == "mine"


def test_play_converts_reward_of_true(bad: EnvironmentPool) -> None:
    assert bad.play([call("true", "true reward")]) == [Step("", 1.0)]


def test_play_runs_no_method_of_tool_call_subclass(bad: EnvironmentPool, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    [step] = bad.play([call("subclass", f"call class {mark}")])
    assert isinstance(step, Step) and type(step.calls[0]) is ToolCall and step.calls[0].name == "add"
    assert not mark.exists()


def test_exit_ends_children_in_own_sessions() -> None:
    with EnvironmentPool(config("Bad")) as pool:
        [step] = pool.play([call("child", "child")])
        assert isinstance(step, Step)
        pid = int(str(step.observation))
        assert Path(f"/proc/{pid}").exists()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]:
            return
        time.sleep(0.05)
    raise AssertionError("the child outlives the pool")


@pytest.mark.parametrize("count", [1, 3])
def test_externally_killed_process_is_replaced(tmp_path: Path, count: int) -> None:
    with EnvironmentPool(config("DiesOnce")) as pool:
        found = pool.play([call(str(place), "x", last=1, prompt=str(tmp_path)) for place in range(count)])
    assert found == [Step("x", 1.0, True, {"replies": 1.0})] * count
    assert len(list(tmp_path.iterdir())) == count


def test_environment_that_fails_to_start_fails_its_episode() -> None:
    with EnvironmentPool(config("NoReset")) as pool:
        [failed] = pool.play([call("a", "x")])
    assert isinstance(failed, Failure) and "no world today" in failed.detail


def test_unrecoverable_environment_is_lost_with_process() -> None:
    with EnvironmentPool(config("Fleeting")) as pool:
        lost, killer, unborn = pool.play([call("a", "x"), call("b", "die"), call("c", "x")])
        assert isinstance(lost, Step), "it had ended before"
        assert isinstance(killer, Failure) and isinstance(unborn, Failure)
        assert killer.cause == unborn.cause == "crash"


def test_environments_wait_concurrently_and_hung_one_is_ended() -> None:
    with EnvironmentPool(config("Slow", timeout_s=6.0)) as pool:
        calls = [call(str(place), "wait" if place == 7 else "x") for place in range(100)]
        outcomes = pool.play(calls)  # sequential resets would take 30 s and time out
    assert [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Failure)] == [7]
    assert isinstance(outcomes[7], Failure) and outcomes[7].cause == "hang"


def test_calls_reach_outside_once(tmp_path: Path) -> None:
    with EnvironmentPool(config("Noted", num_workers=2)) as pool:
        outcomes = pool.play([call(str(place), "x", last=1, prompt=str(tmp_path)) for place in range(20)])
    assert all(isinstance(outcome, Step) and outcome.done for outcome in outcomes)
    assert len(list(tmp_path.iterdir())) == 20


def test_call_runs_while_pool_is_not_polled(tmp_path: Path) -> None:
    with EnvironmentPool(config("Noted")) as pool:
        pool.submit([call("0", "x", last=1, prompt=str(tmp_path))])
        deadline, answers = time.monotonic() + 60.0, list[Answer]()
        while not list(tmp_path.iterdir()):
            assert time.monotonic() < deadline, "no step"
            time.sleep(0.01)
        while not answers:
            assert time.monotonic() < deadline, "no answer"
            answers = pool.listen(1.0)
    assert [answer.episode for answer in answers] == ["0"]


def test_unrunnable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "world.py"
    file.write_text("import no_such_module\n")
    with pytest.raises(ConfigError, match="no_such_module"), EnvironmentPool(EnvironmentConfig(name=f"{file}:World")):
        pass
    with pytest.raises(ConfigError, match="World"), EnvironmentPool(EnvironmentConfig(name=f"{FILE}:World")):
        pass


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('resume = "snapshot"', r"World without snapshot\(\) and restore\(row, data\)"),
        ('resume = "snapshot"\n    def snapshot(self): return b""', r"World without restore\(row, data\)\. Next"),
        ('resume = "snapshots"', r"one of snapshot, replay, restart; got 'snapshots' of World"),
    ],
)
@pytest.mark.parametrize("key", ["name", "tools"])
def test_class_without_declared_methods_is_refused(tmp_path: Path, key: str, body: str, said: str) -> None:
    """The run fails at startup instead of at the first snapshot."""
    (tmp_path / "world.py").write_text(
        "from slurm_rl.envs.environment import Environment, Step\n"
        f"class World({'Environment' if key == 'name' else 'object'}):\n    {body}\n"
        '    def act(self) -> str:\n        """Do it."""\n        return ""\n'
    )
    own: dict[str, Any] = {key: f"{tmp_path / 'world.py'}:World"}
    with pytest.raises(ConfigError, match=f"env.{key}: .*{said}"), EnvironmentPool(EnvironmentConfig(**own)):
        pass


def test_inherited_methods_are_accepted(tmp_path: Path) -> None:
    own = 'from slurm_rl.envs.environment import Environment\nclass Base(Environment):\n    resume = "snapshot"\n'
    own += "    def snapshot(self):\n        return b''\n    def restore(self, row, data):\n        pass\n"
    (tmp_path / "world.py").write_text(f"{own}class World(Base):\n    version = '3'\n")
    with EnvironmentPool(EnvironmentConfig(name=f"{tmp_path / 'world.py'}:World")) as pool:
        assert pool.facts == Facts("snapshot", "3")
