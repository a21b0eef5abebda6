"""A GRPO run whose reward is a judge with random verdicts, killed and resumed; real Ray, vLLM and openai client."""

import random
from pathlib import Path

import pytest

from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.train.test_run import has_rows, kill_driver_when
from tests.unit.plugins.judge.api_kit import Answer, serve_api
from tests.whole_run import exact_rows, finish, start_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


def test_resumed_run_repeats_random_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", "sk-canary")
    run, prompt = tmp_path / "run", tmp_path / "judge.txt"
    prompt.write_text("{question}{completion} ({reference})")
    with serve_api(lambda _: Answer(f"Score: {random.randint(0, 10)}")) as api:
        words = [f"url={api.url}", "model=judge", f"prompt={prompt}", "api_key=MY_JUDGE_KEY", "range=[0,10]"]
        process = start_run(run, *(f"reward.judge.{word}" for word in words))
        # Step 43 has a row and no checkpoint.
        kill_driver_when(process, run, lambda: has_rows(run, 44))
        before = [row for row in exact_rows(run) if row["stage"] == "grpo"]
        finish(start_run(run, verb="resume"))
    after = [row for row in exact_rows(run) if row["stage"] == "grpo"]
    assert after[: len(before)] == before and len(after) == 6
    assert len({row["reward/mean"] for row in after}) > 1
    assert all(row["reward/mean"] == pytest.approx(row["score/judge"]) and not row["reward/failed"] for row in after)
    assert len(read_rows(RunDir(run).judge)) == len(api.requests)
    closed = [event for event in read_events(RunDir(run)) if event["kind"] == "judge/closed"]
    assert closed[-1]["cached"] > 0
    assert set(api.keys) == {"Bearer sk-canary"}
    assert [path for path in run.rglob("*") if path.is_file() and b"sk-canary" in path.read_bytes()] == []
