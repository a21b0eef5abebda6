"""GRPO runs whose reward is a judge, killed and resumed; real Ray, vLLM and openai client."""

import os
import random
import signal
import string
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_rl.plugins.judge.server import KEY
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.tiny_models import SMALL
from tests.train.test_run import has_rows, kill_driver_when
from tests.unit.plugins.judge.api_kit import Answer, serve_api
from tests.whole_run import (
    command_line,
    events_of,
    exact_rows,
    find_processes,
    finish,
    run_cli,
    stage_rows,
    start_run,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(6000)]


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


def test_run_with_own_server_survives_its_death_and_resumes(tmp_path: Path) -> None:
    """The judge is a random model that vLLM serves in the job; each reply is a digit."""
    run, prompt = tmp_path / "run", tmp_path / "judge.txt"
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    # vLLM renders a message of its own at its start, so the tokenizer must know all letters.
    model = replace(SMALL, characters=string.printable, chat_template=template)
    prompt.write_text("{question}{completion}=")
    words = [f"prompt={prompt}", "range=[0,9]", "weight=0.5", "price_output=100"]
    words += [f"server.model={model.write(tmp_path / 'judge')}", "server.start_timeout_s=1800"]
    tables = ["request={temperature: 1.0, max_tokens: 4, structured_outputs: {regex: '[0-9]'}}"]
    tables += ["server.vllm_args={load_format: dummy, kv_cache_memory_bytes: 67108864}"]
    process = start_run(run, *(f"reward.judge.{word}" for word in words), *(f"+reward.judge.{word}" for word in tables))
    wait_for(lambda: has_rows(run, 42), "no step", process, timeout_s=1800)
    server = events_of(run, "reward/service_up")[-1]["pid"]
    variables = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    [key] = [one.partition(b"=")[2].decode() for one in variables if one.startswith(KEY.encode())]
    assert key not in command_line(server)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: has_rows(run, 43), "no step after the server's death", process, timeout_s=1800)
    # Step 43 has a row and no checkpoint.
    kill_driver_when(process, run, lambda: has_rows(run, 44))
    before = stage_rows(run)
    finish(start_run(run, verb="resume"), timeout_s=2400)
    after = stage_rows(run)
    assert after[: len(before)] == before and len(after) == 6
    assert len({row["score/judge"] for row in after}) > 1
    assert [event["service"] for event in events_of(run, "reward/service_died")] == ["judge"]
    for row in after:
        assert row["reward/mean"] == pytest.approx(row["score/arithmetic"] + 0.5 * row["score/judge"])
        assert not row["reward/failed"]
    replies = read_rows(RunDir(run).judge)
    assert len({row["key"] for row in replies}) == len(replies) == replies[-1]["total"]["replies"]
    assert f"judge   {len(replies):,} replies, price " in run_cli(tmp_path, "status", str(run))
    assert [path for path in run.rglob("*") if path.is_file() and key.encode() in path.read_bytes()] == []
    wait_for(lambda: not find_processes(run), "processes of the run are left")
