import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.user_parts import program_files
from slurm_rl.data.groups import Group
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.rollout.endpoint.programs import ADAPTERS, find_argv
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from tests.unit.rl.test_agent_rollouts import Engine, letters, play_prompts

WORLD = f"{Path(__file__).with_name('bad_gym.py')}:World"
WAYS = {
    "raise": ("exception", "no such door"),
    "exit": ("exception", "SystemExit: enough"),
    "deep": ("exception", "RecursionError"),
    "nan": ("bad score", "finite number; got nan"),
    "much": ("exception", "could not convert string to float"),
    "none": ("exception", "TypeError"),
    "short": ("exception", "not enough values to unpack"),
    "half": ("exception", "valid Unicode"),
}


def play(ways: Sequence[str], *words: str, within_s: float | None = None) -> list[Group]:
    """Play one episode per kind of failure; the policy replies with it in every turn."""
    prompts = [EncodedPrompt(index=i, token_ids=[63], text=way, answer="") for i, way in enumerate(ways)]
    argv = find_argv([sys.executable, "adapter:gymnasium", WORLD, *words])
    return play_prompts(prompts, argv, Engine(say=lambda text: text.partition(":")[0]), rows=64, within_s=within_s)


def test_faulty_environment_fails_its_episode_with_cause() -> None:
    ways = ["fine", *WAYS, "print"]
    groups = play(ways)
    for way, group in zip(ways, groups, strict=True):
        for result in group.results:
            if way in WAYS:
                cause, told = WAYS[way]
                assert (result.value, result.failure) == (None, cause) and told in result.detail, (way, result.detail)
            else:
                assert result.value == 1.0 and result.failure is None, (way, result.detail)
    metrics = sampling_metrics(groups)
    assert metrics["reward/failed_exception"] == 14.0 and metrics["reward/failed_bad_score"] == 2.0
    assert metrics["reward/mean"] == 1.0


@pytest.mark.parametrize(
    ("fails", "told"), [("make", "no such world"), ("reset", "no seed True"), ("close", "cannot be closed")]
)
def test_errors_of_make_reset_and_close_are_failures(fails: str, told: str) -> None:
    [group] = play(["fine"], "--words", f'{{"fails": "{fails}"}}')
    assert all(result.failure == "exception" and told in result.detail for result in group.results)


def test_environment_that_kills_process_fails_its_episodes() -> None:
    [died] = play(["die"])
    assert all(result.failure == "crash" and "SIGKILL" in result.detail for result in died.results)


def test_failed_start_of_adapter_is_explained() -> None:
    [group] = play_prompts(
        [EncodedPrompt(index=0, token_ids=[63], text="?", answer="")],
        find_argv([sys.executable, "adapter:gymnasium", f"{Path(__file__).parent}/nowhere.py:World"]),
        Engine(),
        rows=64,
    )
    assert all(result.failure == "exception" and "nowhere.py" in result.detail for result in group.results)


def test_episode_at_run_limit_keeps_reward_so_far() -> None:
    [turns, tokens] = play(["go", "long"], "--max-steps", "99")
    # Eight turns (env.max_turns) of a quarter; and one turn, after which no reply fits.
    assert [result.value for result in turns.results] == [2.0, 2.0]
    assert [result.value for result in tokens.results] == [1.0, 1.0]
    assert all(completion.truncated for group in (turns, tokens) for completion in group.completions)


def test_adapter_limit_ends_episode() -> None:
    [group] = play(["go"], "--max-steps", "3")
    assert [(result.value, result.parts) for result in group.results] == [(0.75, {"steps": 3.0})] * 2
    completion = group.completions[0]
    # The environment's first observation follows the prompt.
    assert [letters(branch.context) for branch in completion.branches] == ["go:"]
    assert letters(completion.token_ids) == "gogo:gogo:go"


def test_invalid_action_is_reported_and_uses_step() -> None:
    [group] = play(["go"], "--words", '{"numbered": true}', "--max-steps", "2")
    assert [(result.value, result.parts) for result in group.results] == [(0.0, {"steps": 2.0})] * 2
    assert letters(group.completions[0].token_ids) == "gono such actiongo"


def test_files_in_words_are_copied_into_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    program = "env.agent_command=[python,adapter:gymnasium,bad_gym.py:World,nobody.py]"
    config = load_config(["+exp=demo", program, "env.turn_tokens=1"])
    assert config.env.agent_command == ("python", "adapter:gymnasium", WORLD, "nobody.py")
    assert program_files(config) == [WORLD]


def test_adapter_imports_only_standard_library() -> None:
    lines = [line for path in ADAPTERS.glob("*.py") for line in path.read_text().splitlines()]
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert len(imports) > 10 and not any("slurm_rl" in line for line in imports)
