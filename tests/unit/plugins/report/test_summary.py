from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from slurm_rl.plugins.report.html import write_report
from slurm_rl.plugins.report.leaderboard import explain_missing
from slurm_rl.plugins.report.summary import build_summary, describe_data, render_summary, write_summary
from slurm_rl.run_dir.event_text import RunMeta, collect_meta, compute_wall_s, find_model, find_state
from slurm_rl.run_dir.run_dir import RunDir, read_json

from .sample_run import fill, make_row, make_rows

META = RunMeta(name="a", state="finished", model="m", attempts=1, wall_s=21.5, rows={}, paths={"run": "/runs/a"})


def test_summary_of_finished_run() -> None:
    assert build_summary(make_rows(), META) == {
        "name": "a",
        "state": "finished",
        "model": "m",
        "attempts": 1,
        "warmup_steps": 4,
        "stage": "grpo",
        "rows": {},
        "steps": 6,
        "accuracy": {
            # Step 4, after the warm-up; not step 0.
            "before": {"step": 4, "sampled": 0.125, "greedy": 0.25},
            "after": {"step": 10, "sampled": 0.5, "greedy": 0.75},
        },
        "held_out": {"before": None, "after": None},
        "sets": {},
        "warnings": [],
        "reward": {"first": 5 / 16, "last": 10 / 16},
        # 6 steps of 100 tokens in 2 s each.
        "packed": True,
        "tokens_per_s": 50.0,
        "wall_s": 21.5,
        # 4 * 0.5 s + 1 s + 6 * 2 s = 15 s; 6 * (2 - 1 - 0.75) s are unnamed.
        "time": {
            "warmup": {"seconds": 2.0, "share": 0.1333},
            "eval": {"seconds": 1.0, "share": 0.0667},
            "rollout": {"seconds": 6.0, "share": 0.4},
            "train": {"seconds": 4.5, "share": 0.3},
            "other": {"seconds": 1.5, "share": 0.1},
        },
        "paths": {"run": "/runs/a"},
    }


def test_supervised_run_is_summarized_by_held_out_metrics() -> None:
    rows = [make_row(0, "eval", **{"eval/loss": 2.5, "eval/exact_match": 0.0})]
    rows += [make_row(step, "sft", **{"tokens/trained": 10, "time/step_s": 0.5}) for step in (1, 2)]
    rows += [make_row(2, "eval", **{"eval/loss": 1.25, "eval/exact_match": 0.5})]
    summary = build_summary(rows, META)
    assert (summary["stage"], summary["steps"], summary["tokens_per_s"]) == ("sft", 2, 20.0)
    assert summary["held_out"] == {
        "before": {"loss": 2.5, "exact_match": 0.0},
        "after": {"loss": 1.25, "exact_match": 0.5},
    }
    console = Console(width=80, record=True, file=StringIO())
    console.print(render_summary(summary))
    text = console.export_text()
    assert "2 SFT" in text and "0 warm-up" not in text
    assert "2.500 -> 1.250" in text and "exact match" in text


def test_run_of_one_sequence_row_is_reported() -> None:
    rows = [make_row(1, "grpo", **{"policy/packed": 0.0})]
    console = Console(width=120, record=True, file=StringIO())
    console.print(render_summary(build_summary(rows, META)))
    assert "of one sequence each" in console.export_text()


def test_run_without_step_has_nulls() -> None:
    summary = build_summary([], replace(META, state="failed"))
    assert summary["accuracy"] == {"before": None, "after": None}
    assert summary["reward"] == {"first": None, "last": None}
    assert summary["tokens_per_s"] is None
    assert summary["time"] == {}
    assert "failed" in str(render_summary(summary).title)


def test_evaluation_before_grpo_is_not_final() -> None:
    rows = [make_row(0, "eval", **{"accuracy/greedy": 0.5}), make_row(1, "grpo")]
    assert build_summary(rows, META)["accuracy"] == {"before": {"step": 0, "greedy": 0.5}, "after": None}


def test_write_summary_reads_run_directory(finished_run: RunDir) -> None:
    summary = write_summary(finished_run)
    assert read_json(finished_run.summary) == summary
    assert (summary["state"], summary["model"], summary["wall_s"]) == ("finished", "org/some-model", 14.0)


def test_table_holds_numbers_and_literal_brackets() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=None)
    with console.capture() as capture:
        console.print(render_summary(build_summary(make_rows(), replace(META, paths={"run": "/runs/[red]a"}))))
    text = capture.get()
    for expected in ("a: finished", "25.0% -> 75.0%", "0.312 -> 0.625", "4 warm-up, 6 GRPO", "/runs/[red]a", "21.5 s"):
        assert expected in text


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "unknown"),
        (["job/submitted"], "queued"),
        (["job/submitted", "attempt/started", "engine/ready"], "running"),
        (["attempt/started", "attempt/ended"], "node lost"),
        (["attempt/started", "attempt/ended", "attempt/started"], "running"),
        (["attempt/started", "trainer/finished"], "finished"),
    ],
)
def test_state_follows_newest_event(kinds: list[str], state: str) -> None:
    assert find_state([{"kind": kind, "time": 0.0, "outcome": "node lost"} for kind in kinds]) == state


def test_wall_time_leaves_queue_out() -> None:
    times: list[tuple[str, float]] = [
        ("job/submitted", 0),
        ("attempt/started", 100),
        ("attempt/ended", 110),
        ("attempt/started", 500),  # The node died after 520 without another event.
        ("checkpoint/saved", 520),
        ("attempt/started", 900),
        ("engine/ready", 903),
    ]
    events: list[dict[str, Any]] = [{"kind": kind, "time": time} for kind, time in times]
    assert compute_wall_s(events, last_stamp=0.0) == 10 + 20 + 3
    assert compute_wall_s(events, last_stamp=907.5) == 10 + 20 + 7.5


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("model: {path: org/m}", "org/m"),
        ("model: {path: null, from_config: tiny_qwen3}", "tiny_qwen3, random weights"),
        ("model: {path: null}\nexternal: {argv: [x], model: org/m}", "org/m"),
        ("task: command\nexternal: {argv: [x], model: null}", "of task=command"),
        ("", "unknown"),
        ("model: [", "unknown"),
    ],
)
def test_model_is_named_from_config(config: str, model: str) -> None:
    assert find_model(config) == model


def test_resumed_attempt_ends_with_its_last_row(run: RunDir) -> None:
    fill(run.events, [{"time": 1_800_000_000.0, "kind": "attempt/started"}])
    fill(run.metrics, [make_row(8, "grpo")])
    assert collect_meta(run).wall_s == 8.0


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        (500, "9,500 to train on, 500 held out, 7 left out"),
        (0, "9,500 to train on, none held out: nothing is evaluated"),
    ],
)
def test_row_counts_are_in_summary_and_report(run: RunDir, held_out: int, says: str) -> None:
    counts = {"train": 9500, "held_out": held_out, "overlapping": 0, "overlong": 7}
    fill(run.events, [{"time": 1.0, "kind": "data/loaded", **counts}])
    fill(run.metrics, [make_row(1, "grpo")])
    summary = build_summary([], collect_meta(run))
    assert summary["rows"] == counts and says in describe_data(summary)
    assert f"rows: {describe_data(summary)}" in write_report(run).read_text()
    missing = explain_missing([run], "accuracy.after.sampled")
    assert ("with data.num_eval=0 nothing is evaluated" in str(missing)) == (held_out == 0)
