from pathlib import Path

import pytest

from slurm_rl.__main__ import main

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "guessing_game")
WORLDS = Path(__file__).parents[1] / "envs" / "worlds.py"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "after a kill: every metric in every digit"),
        (["rollout.max_off_policy_steps=2"], "after a kill: every metric in every digit"),
        (["env.schedule=async"], "after a kill: the same tokens, no ended turn is sampled again"),
        (["env.schedule=async", "model.dtype=bfloat16"], "after a kill: no ended turn is sampled again"),
        (
            ["env.schedule=async", "rollout.max_off_policy_steps=2", "rollout.inflight_weight_updates=true"],
            "after a kill: no ended turn of a saved policy is lost",
        ),
        (
            ["env.name=null", "env.agent_command=[python,-m,agent]"],
            "after a kill: the same tokens, no recorded reply is sampled again",
        ),
    ],
)
def test_plan_shows_exactness_of_resume(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits.jsonl").write_text("".join(f'{{"prompt": "{i:03d}?", "answer": "2"}}\n' for i in range(20)))
    run = ["+exp=guessing_game_tiny", "data.train=digits.jsonl", "data.num_eval=1", f"env.name={WORLDS}:Count"]
    run.append(f"model.from_config={EXAMPLE}/model")
    assert main(["plan", "--full", "--config-dir", EXAMPLE, *run, *words]) == 0
    assert text in capsys.readouterr().out
