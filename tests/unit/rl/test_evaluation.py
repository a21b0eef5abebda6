from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.grpo.evaluation import Evaluator
from slurm_rl.trainers.grpo.trainer_state import TrainerState

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
