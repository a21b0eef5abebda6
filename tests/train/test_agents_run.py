"""Two agents over one model, one of them with a context that is cut: a run of real Ray, vLLM and torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.metrics_page import find_unexplained
from tests.examples.kit import HERE, ROOT, SMALL
from tests.whole_run import exact_rows, run_cli

WORLD = '''
from slurm_rl.envs.environment import Environment, Step


class Higher(Environment):
    """Each says a digit; then the first may say another, of which alone it knows that it lost or won."""

    def reset(self, row, seed):
        self.said = []

    def step(self, reply):
        self.said.append(int(reply.text) if reply.text.isdigit() else -1)
        match len(self.said):
            case 1:
                return Step("?", agent="black")
            case 2:
                return Step("<" if self.said[0] < self.said[1] else ">", agent="", begins=True)
            case _:
                won = float(self.said[2] > self.said[1]) * 2 - 1
                return Step(done=True, rewards={"": won, "black": -won})
'''


@pytest.mark.slow
@pytest.mark.parametrize("order", ["lockstep", "async"])
def test_two_agents_are_trained_on_what_each_of_them_read(tmp_path: Path, order: str) -> None:
    (tmp_path / "higher.py").write_text(WORLD)
    rows = [json.dumps({"prompt": f"{n:03d}?", "answer": str(n % 10)}) for n in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    run = tmp_path / "run"
    words = [f"run_dir={run}", "--config-dir", str(ROOT / "examples/guessing_game"), "+exp=guessing_game_tiny"]
    words += [*HERE, *SMALL, "+algorithm=turn_rloo", "env.name=higher.py:Higher", "data.train=rows.jsonl"]
    words += ["data.num_eval=4", "trainer.num_steps=2", "eval.interval=2", f"env.schedule={order}", "env.num_workers=2"]
    run_cli(tmp_path, *words)
    steps = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert len(steps) == 2
    for row in steps:
        assert row["episode/turns_mean"] == 3 and row["reward/mean"] == 0.0 and row["reward/failed"] == 0.0
        assert row["mismatch/max"] < 1e-4, "the policy reads what the engine read"
        assert row["policy/grad_norm"] > 0, "each learns from what came to it"
        assert row["agent/first/turns"] == 2 and row["agent/black/turns"] == 1
        assert row["agent/first/reward"] == -row["agent/black/reward"] != 0
    assert find_unexplained({key for row in exact_rows(run) for key in row}) == set()
