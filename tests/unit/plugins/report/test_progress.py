from collections.abc import Callable

import pytest

from slurm_rl.cli.progress import Progress, follow
from slurm_rl.run_dir.run_dir import RunDir

from .sample_run import START, fill, make_events, make_row, make_rows


def follow_script(run: RunDir, monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], object]) -> None:
    """Follow a run; each poll runs one action, and the run ends with the last one. Time does not pass."""
    monkeypatch.setattr("slurm_rl.cli.progress.REFRESH_S", 0.0)
    left = list(actions)

    def is_alive() -> bool:
        left.pop(0)()
        return bool(left)

    follow(run, is_alive)


def started(**fields: int) -> Progress:
    progress = Progress()
    progress.apply_event({"time": START - 2.0, "kind": "attempt/started"})
    progress.apply_event({"time": START - 1.0, "kind": "trainer/started", **fields})
    return progress


def test_stage_follows_events() -> None:
    progress = Progress()
    for kind, text in {
        "job/submitted": "waiting for the job to start",
        "attempt/started": "starting the nodes",
        "node/started": "starting the processes",
        "ray/cluster_ready": "loading the model",
        "spare/used": "loading the model",
    }.items():
        progress.apply_event({"time": START, "kind": kind})
        assert progress.stage_text() == text


def test_steps_are_counted_from_one_in_each_stage() -> None:
    progress = started(warmup_steps=400, num_steps=100)
    progress.apply_row(make_row(120, "warmup"))
    assert progress.stage_text() == "warm-up 120/400"
    progress.apply_row(make_row(437, "grpo"))
    assert progress.stage_text() == "GRPO 37/100"
    progress = started(warmup_steps=0, num_steps=8)
    progress.apply_row(make_row(0, "eval", **{"eval/loss": 2.0}))
    progress.apply_row(make_row(3, "dpo"))
    assert progress.stage_text() == "DPO 3/8"
    assert progress.numbers() == ["held-out loss 2.000"]


def test_remaining_time_uses_pace_of_stage() -> None:
    progress = started(warmup_steps=4, num_steps=10)
    progress.apply_row(make_row(4, "warmup", **{"time/step_s": 90.0}))
    assert progress.left_s() == 0.0
    progress.apply_row(make_row(5, "grpo", **{"time/step_s": 1.0, "reward/mean": 0.25}))
    progress.apply_row(make_row(6, "grpo", **{"time/step_s": 2.0, "reward/mean": 0.5}))
    assert progress.left_s() == 8 * 1.5
    assert progress.numbers() == ["reward 0.500", "12.0 s left"]


def test_rows_of_earlier_attempt_give_numbers_but_no_stage() -> None:
    progress = started(warmup_steps=0, num_steps=10)
    progress.apply_event({"time": START + 50.0, "kind": "attempt/started"})
    progress.apply_row(make_row(6, "grpo", **{"reward/mean": 0.5}))
    assert progress.stage_text() == "starting the nodes"
    assert progress.numbers() == ["reward 0.500"]


def test_progress_without_terminal_is_plain_lines(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events, rows = make_events(), make_rows()
    follow_script(
        run,
        monkeypatch,
        lambda: fill(run.events, events[:3]),
        lambda: fill(run.metrics, rows[:2]),
        lambda: fill(run.metrics, rows[2:8]),
        # Rows that arrive together with the run's end are still shown.
        lambda: (fill(run.metrics, rows[8:]), fill(run.events, events[3:])),
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert [line[9:] for line in lines[:3]] == [
        "job submitted: job_id 7",
        "attempt started: attempt 1",
        "trainer started: warmup_steps 4, num_steps 6",
    ]
    assert lines[3] == "warm-up 1/4, accuracy 0.0%, sampled 0.0%, 1.5 s left"
    assert lines[4] == "GRPO 2/6, reward 0.375, accuracy 25.0%, sampled 12.5%, 50 tokens/s, 8.0 s left"
    assert lines[-1].endswith("attempt ended: outcome finished, cause all steps done")


def test_progress_lines_appear_every_ten_steps(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run.events, [{"time": START, "kind": "trainer/started", "warmup_steps": 0, "num_steps": 30}])
    steps = [lambda step=step: fill(run.metrics, [make_row(step, "grpo")]) for step in range(1, 31)]
    follow_script(run, monkeypatch, *steps)
    assert capsys.readouterr().out.splitlines()[1:] == ["GRPO 1/30", "GRPO 11/30", "GRPO 21/30", "GRPO 30/30"]
