import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.sources import each_set
from slurm_rl.data.load_data import load_set
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.errors import ConfigError
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.eval_sets import EvalSet, set_metrics
from slurm_rl.trainers.grpo.evaluation import Evaluator
from slurm_rl.trainers.grpo.trainer_state import TrainerState
from tests.unit.rl.batch_kit import make_group

WORDS = ("+exp=demo", "+eval.sets.big.data=addition", "++eval.sets.big.num_samples=4", "+eval.sets.big.num_rows=3")


def test_eval_set_has_own_rows_sampling_and_columns(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": f"{n}+0=", "answer": str(n)}) + "\n" for n in range(5)))
    words = [f"+eval.sets.mine.data={rows}", "+eval.sets.mine.temperature=0", "+eval.sets.mine.input_key=q"]
    config = load_config([*WORDS, *words, "+eval.sets.mine.max_tokens=2", "data.largest_addend=7"])
    sets = each_set(config)
    assert [row.prompt for row in load_set(sets["mine"].data, None)] == [f"{n}+0=" for n in range(5)]
    assert len({row.prompt for row in load_set(sets["big"].data, 3)}) == 3
    assert sets["big"].data.largest_addend == 7
    mine, big = sets["mine"].rollout, sets["big"].rollout
    assert (mine.max_tokens, mine.temperature) == (2, 0.0)
    assert (big.max_tokens, big.temperature) == (config.rollout.max_tokens, config.rollout.temperature)
    # The choice depends on the prompts, not on their order.
    turned = tmp_path / "turned.jsonl"
    turned.write_text("".join(reversed(rows.read_text().splitlines(keepends=True))))
    again = each_set(load_config([*WORDS, f"+eval.sets.mine.data={turned}", "+eval.sets.mine.input_key=q"]))["mine"]
    chosen = [[row.prompt for row in load_set(one.data, 2)] for one in (sets["mine"], again)]
    assert chosen[0] == chosen[1]


def test_seeds_of_set_are_constant() -> None:
    def specs(*words: str) -> list[Any]:
        config = load_config([*WORDS, *words])
        nothing: Any = None
        one = EvalSet("big", [], nothing, each_set(config)["big"], config.eval.sets["big"].num_samples)
        return [one.spec(step) for step in (0, 40)]

    first, later = specs()
    assert first.seed == later.seed == specs("seed=7")[0].seed
    assert (first.num_completions, first.temperature) == (4, 1.0)
    [greedy, _] = specs("+eval.sets.big.temperature=0", "++eval.sets.big.num_samples=1")
    assert greedy.temperature == 0 and greedy.seed == first.seed


def test_failures_are_counted_not_wrong_answers() -> None:
    groups = [make_group(0, [1.0, None]), make_group(1, [0.0, 1.0]), make_group(2, [None, None])]
    found = set_metrics("big", groups)
    assert found["set/big/avg@2"] == pytest.approx(0.75) and found["set/big/failed"] == 3
    # Only one prompt has two samples.
    assert found["set/big/pass@2"] == 1.0 and found["set/big/prompts"] == 3
    assert found["set/big/avg@2_error"] > 0
    assert not [key for key in set_metrics("big", groups[2:]) if "@" in key]


def test_run_with_sets_only_has_no_best(tmp_path: Path) -> None:
    config = load_config([*WORDS, "warmup.num_steps=0", "trainer.num_steps=4", "eval.interval=2"])
    (tmp_path / "events.jsonl").touch()
    written: list[dict[str, float]] = []

    class Rollouts:
        def sample(self, prompts: Any, spec: Any) -> Any:
            return [make_group(0, [1.0, 0.0, 0.0, 0.0])]

    nothing: Any = None
    sync: Any = type("Sync", (), {"verify": lambda self: 0.0})()
    rollouts: Any = Rollouts()
    sets = [EvalSet("big", [], rollouts, each_set(config)["big"], 4)]
    evaluator = Evaluator(config, RunDir(tmp_path), [], nothing, sync, lambda _, row: written.append(row), sets)
    state = TrainerState(stage="grpo", step=2)
    evaluator.run_if_due(state)
    [row] = written
    assert (row["set/big/avg@4"], row["set/big/pass@2"], row["set/big/pass@4"]) == (0.25, 0.5, 1.0)
    assert "accuracy/sampled" not in row and state.evaluated_step == 2 and state.best_step == -1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("+eval.sets.other.num_rows=2", "eval.sets.other.data must name its rows"),
        ("+eval.sets.big.temperature=0", "num_samples must be 1 with temperature=0"),
        ("+eval.sets.big.max_tokens=9", "eval.sets.big: max_tokens must be at most rollout.max_tokens"),
    ],
)
def test_contradicting_settings_are_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([*WORDS, word])


PROMPT = EncodedPrompt(index=0, token_ids=[1], text="3+4=", answer="7")


@pytest.mark.parametrize(("held_out", "asked"), [([PROMPT], [0, 2, 4]), ([], [])])
def test_evaluation_without_rows_is_skipped(
    held_out: list[EncodedPrompt], asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(["+exp=demo", "warmup.num_steps=0", "trainer.num_steps=4", "eval.interval=2"])
    nothing: Any = None
    evaluator = Evaluator(config, RunDir(tmp_path), held_out, nothing, nothing, nothing)
    found: list[int] = []
    monkeypatch.setattr(evaluator, "evaluate", lambda step: found.append(step) or {"sampled": 0.5})
    state = TrainerState(stage="grpo")
    for state.step in range(5):
        evaluator.run_if_due(state)
    assert found == asked
    assert (state.best_step, state.best_accuracy) == ((0, 0.5) if held_out else (-1, -1.0))
