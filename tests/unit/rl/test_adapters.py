import sys
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.user_parts import program_files
from slurm_rl.rollout.endpoint.programs import ADAPTERS, find_argv
from tests.unit.rl.test_agent_rollouts import letters, play

WORLD = '''
class Numbered:
    n = 3

class World:
    """Actions are letters, or numbers where it is told so; the third ends it."""

    def __init__(self, numbered=False, breaks=False):
        if numbered:
            self.action_space = Numbered()
        self.breaks, self.actions, self.closed = breaks, [], False

    def reset(self, *, seed=None, options=None):
        assert 0 <= seed < 2**31
        print("a world may print")
        return "!", {}

    def step(self, action):
        if self.breaks:
            raise RuntimeError("no such door")
        self.actions.append(action)
        return "no", 0.5, len(self.actions) == 3, False, {}

    def close(self):
        self.closed = True
'''


@pytest.fixture
def world(tmp_path: Path) -> str:
    (tmp_path / "world.py").write_text(WORLD)
    return f"{tmp_path / 'world.py'}:World"


def adapter(name: str, *words: str) -> list[str]:
    return find_argv([sys.executable, f"adapter:{name}", *words])


def test_environment_with_reset_and_step(world: str) -> None:
    [group], _ = play("", ["a"], rows=4, argv=adapter("gymnasium", world))
    assert [(result.value, result.parts) for result in group.results] == [(1.5, {"steps": 3.0})] * 2
    completion = group.completions[0]
    # The environment's first observation follows the prompt.
    assert [letters(branch.context) for branch in completion.branches] == ["?!"]
    assert letters(completion.token_ids) == "anobnoc"


def test_invalid_action_is_reported_and_uses_step(world: str) -> None:
    words = ("--words", '{"numbered": true}', "--max-steps", "2")
    [group], _ = play("", ["a"], rows=4, argv=adapter("gymnasium", world, *words))
    assert [(result.value, result.parts) for result in group.results] == [(0.0, {"steps": 2.0})] * 2
    assert letters(group.completions[0].token_ids) == "ano such actionb"


def test_environment_that_raises_fails_its_episode(world: str) -> None:
    [group], _ = play("", ["a"], rows=4, argv=adapter("gymnasium", world, "--words", '{"breaks": true}'))
    assert all(result.failure == "exception" and "no such door" in result.detail for result in group.results)


def test_files_in_words_are_copied_into_run(world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "env.agent_command=[python,adapter:gymnasium,world.py:World,nobody.py]"
    config = load_config(["+exp=demo", program, "env.turn_tokens=1"])
    assert config.env.agent_command == ("python", "adapter:gymnasium", world, "nobody.py")
    assert program_files(config) == [world]


def test_adapter_imports_only_standard_library() -> None:
    lines = [line for path in ADAPTERS.glob("*.py") for line in path.read_text().splitlines()]
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert len(imports) > 10 and not any("slurm_rl" in line for line in imports)
