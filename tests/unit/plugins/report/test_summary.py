from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from slurm_rl.cli.run_facts import describe_results
from slurm_rl.plugins.report.html import write_report
from slurm_rl.plugins.report.leaderboard import explain_missing
from slurm_rl.plugins.report.summary import build_summary, describe_data, render_summary, write_summary
from slurm_rl.run_dir.event_text import RunMeta, collect_meta, compute_wall_s, find_model, find_state
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.row_text import render_row
from slurm_rl.run_dir.run_dir import RunDir, read_json

from .sample_run import fill, make_row, make_rows


def render(summary: dict[str, Any]) -> str:
    console = Console(width=160, file=StringIO(), record=True)
    console.print(render_summary(summary))
    return console.export_text()


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
    text = render(summary)
    assert "2 SFT" in text and "0 warm-up" not in text
    assert "2.500 -> 1.250" in text and "exact match" in text


def test_run_without_step_has_nulls() -> None:
    summary = build_summary([], replace(META, state="failed"))
    assert summary["accuracy"] == {"before": None, "after": None}
    assert summary["reward"] == {"first": None, "last": None}
    assert (summary["tokens_per_s"], summary["time"]) == (None, {})
    assert "a: failed" in render(summary)


def test_evaluation_before_grpo_is_not_final() -> None:
    rows = [make_row(0, "eval", **{"accuracy/greedy": 0.5}), make_row(1, "grpo", **{"policy/packed": 0.0})]
    summary = build_summary(rows, META)
    assert summary["accuracy"] == {"before": {"step": 0, "greedy": 0.5}, "after": None}
    assert "of one sequence each" in render(summary)


def test_write_summary_reads_run_directory(finished_run: RunDir) -> None:
    summary = write_summary(finished_run)
    assert read_json(finished_run.summary) == summary
    assert (summary["state"], summary["model"], summary["wall_s"]) == ("finished", "org/some-model", 14.0)


def test_table_holds_numbers_and_literal_brackets() -> None:
    text = render(build_summary(make_rows(), replace(META, paths={"run": "/runs/[red]a"})))
    for expected in ("a: finished", "25.0% -> 75.0%", "0.312 -> 0.625", "4 warm-up, 6 GRPO", "/runs/[red]a", "21.5 s"):
        assert expected in text


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ([], "unknown"),
        (["job/submitted"], "queued"),
        (["job/submitted", "attempt/started", "engine/ready"], "running"),
        (["attempt/started", "attempt/ended"], "node lost"),
        (["attempt/started", "trainer/finished"], "finished"),
    ],
)
def test_state_follows_newest_event(kinds: list[str], state: str) -> None:
    assert find_state([{"kind": kind, "time": 0.0, "outcome": "node lost"} for kind in kinds]) == state


def test_wall_time_leaves_queue_out() -> None:
    start, end = "attempt/started", "attempt/ended"
    # The node died after 520 without another event.
    kinds = {0: "job/submitted", 100: start, 110: end, 500: start, 520: "checkpoint/saved", 900: start, 903: "a/b"}
    events = [{"kind": kind, "time": float(time)} for time, kind in kinds.items()]
    assert compute_wall_s(events, last_stamp=0.0) == 10 + 20 + 3
    assert compute_wall_s(events, last_stamp=907.5) == 10 + 20 + 7.5


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ("model: {path: org/m}", "org/m"),
        ("model: {path: null, from_config: tiny_qwen3}", "tiny_qwen3, random weights"),
        ("model: {path: null}\nexternal: {argv: [x], model: org/m}", "org/m"),
        ("task: command\nexternal: {argv: [x], model: null}", "of task=command"),
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
    ("held_out", "says"), [(500, "500 held out, 7 left out"), (0, "none held out: nothing is evaluated")]
)
def test_row_counts_are_in_summary_and_report(run: RunDir, held_out: int, says: str) -> None:
    counts = {"train": 9500, "held_out": held_out, "overlapping": 0, "overlong": 7}
    fill(run.events, [{"time": 1.0, "kind": "data/loaded", **counts}])
    fill(run.metrics, [make_row(1, "grpo")])
    summary = build_summary([], collect_meta(run))
    assert summary["rows"] == counts and f"9,500 to train on, {says}" in describe_data(summary)
    assert f"rows: {describe_data(summary)}" in write_report(run).read_text()
    missing = explain_missing([run], "accuracy.after.sampled")
    assert ("with data.num_eval=0 nothing is evaluated" in str(missing)) == (held_out == 0)


RESULT = {
    "set/mine/avg@4": 0.54,
    "set/mine/avg@4_error": 0.08,
    "set/mine/pass@2": 0.7,
    "set/mine/pass@2_error": 0.09,
    "set/mine/prompts": 32.0,
    "set/mine/failed": 2.0,
}
TEXT = "avg@4 0.540 ± 0.080, pass@2 0.700 ± 0.090, 32 prompts, 2 failed"


@pytest.fixture
def eval_run(run: RunDir) -> RunDir:
    """Return an `eval` run that has evaluated one set."""
    fill(run.metrics, [make_row(0, "eval", **RESULT)])
    counts = {"train": 0, "held_out": 0, "overlapping": 0, "overlong": 0}
    fill(run.events, [{"time": 1.0, "kind": "data/loaded", **counts}])
    run.config.write_text("eval: {only: true}\nmodel: {path: org/m}\n", encoding="utf-8")
    append_row(run.samples, {"step": 0, "set": "mine", "prompt": "p?", "completion": "c", "reward": 1.0})
    return run


def test_result_of_set_is_in_summary_table_report_and_status(eval_run: RunDir) -> None:
    summary = write_summary(eval_run)
    after = summary["sets"]["mine"]["after"]
    assert (after["step"], after["avg@4"], after["avg@4_error"], after["pass@2"]) == (0, 0.54, 0.08, 0.7)
    assert (after["failed"], summary["stage"], summary["sets"]["mine"]["before"]) == (2.0, "eval", None)
    table, page = render(summary), write_report(eval_run).read_text()
    assert "set mine" in table and "GRPO" not in table and "0 mine" in page and "GRPO steps" not in page
    for text in (table, page):
        assert TEXT in text and "nothing is evaluated" not in text
    assert list(describe_results(eval_run)) == [f"set     mine: {TEXT} (step 0)"]
    assert render_row(0, "eval", RESULT, 0.0).endswith(f"eval step 0: set mine {TEXT}")


def test_change_of_set_and_charts_of_scores_are_shown(run: RunDir) -> None:
    fill(run.metrics, [make_row(0, "eval", **{**RESULT, "set/mine/avg@4": 0.25})])
    fill(run.metrics, [make_row(step, "grpo", **{"score/my_reward": step / 9}) for step in range(1, 4)])
    fill(run.metrics, [make_row(3, "eval", **RESULT)])
    assert "avg@4 0.250 -> 0.540 ± 0.080, pass@2" in render(write_summary(run))
    page = write_report(run).read_text()
    assert "<h3>Score my_reward</h3>" in page and "<h3>Set mine/avg@4</h3>" in page


@pytest.mark.parametrize(
    ("accuracies", "last_reward", "is_found"),
    [
        ([0.2, 0.82, 0.36], 0.98, True),
        ([0.2, 0.82, 0.36], 0.82, False),  # the reward fell, too
        ([0.2, 0.82, 0.78], 0.98, False),  # within the noise of 100 rows
        ([0.2, 0.36, 0.82], 0.98, False),
    ],
)
def test_divergence_of_falling_accuracy_and_rising_reward_is_shown(
    run: RunDir, accuracies: list[float], last_reward: float, is_found: bool
) -> None:
    counts = {"train": 9, "held_out": 100, "overlapping": 0, "overlong": 0}
    fill(run.events, [{"time": 1.0, "kind": "data/loaded", **counts}])
    fill(run.metrics, [make_row(0, "eval", **{"accuracy/greedy": accuracies[0]})])
    for step in range(1, 41):
        fill(run.metrics, [make_row(step, "grpo", **{"reward/mean": 0.9 + step / 40 * (last_reward - 0.9)})])
        if step % 20 == 0:
            fill(run.metrics, [make_row(step, "eval", **{"accuracy/greedy": accuracies[step // 20]})])
    words = "held-out accuracy (greedy) fell from 0.820 (step 20) to 0.360 (step 40)"
    assert (words in render(write_summary(run)).replace("\n", " ")) is is_found
    assert (words in write_report(run).read_text()) is is_found
    newest, *warnings = describe_results(run)
    assert newest == f"eval    held out: greedy {accuracies[-1]:.3f} (step 40)"
    assert [words in warning for warning in warnings] == [True] * is_found
