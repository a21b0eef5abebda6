from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from slurm_rl.cli.run_facts import describe_results
from slurm_rl.plugins.report.html import write_report
from slurm_rl.plugins.report.summary import render_summary, write_summary
from slurm_rl.run_dir.divergence import find_divergence
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.row_text import render_row
from slurm_rl.run_dir.run_dir import RunDir

from .sample_run import fill, make_row

RESULT = {
    "set/mine/avg@4": 0.54,
    "set/mine/avg@4_error": 0.08,
    "set/mine/pass@2": 0.7,
    "set/mine/pass@2_error": 0.09,
    "set/mine/prompts": 32.0,
    "set/mine/failed": 2.0,
}
TEXT = "avg@4 0.540 ± 0.080, pass@2 0.700 ± 0.090, 32 prompts, 2 failed"


def render(summary: dict[str, Any]) -> str:
    output = StringIO()
    Console(file=output, width=160).print(render_summary(summary))
    return output.getvalue()


@pytest.fixture
def eval_run(run: RunDir) -> RunDir:
    """Return an `eval` run that has evaluated one set."""
    fill(run.metrics, [make_row(0, "eval", **RESULT)])
    counts = {"train": 0, "held_out": 0, "overlapping": 0, "overlong": 0}
    fill(run.events, [{"time": 1.0, "kind": "data/loaded", **counts}])
    run.config.write_text("eval: {only: true}\nmodel: {path: org/m}\n", encoding="utf-8")
    append_row(run.samples, {"step": 0, "set": "mine", "prompt": "p?", "completion": "c", "reward": 1.0})
    return run


def test_summary_of_eval_has_result_of_each_set(eval_run: RunDir) -> None:
    summary = write_summary(eval_run)
    after = summary["sets"]["mine"]["after"]
    assert (after["step"], after["avg@4"], after["avg@4_error"], after["pass@2"]) == (0, 0.54, 0.08, 0.7)
    assert (after["failed"], summary["stage"], summary["sets"]["mine"]["before"]) == (2.0, "eval", None)


def test_table_of_eval_has_one_row_for_each_set(eval_run: RunDir) -> None:
    table = render(write_summary(eval_run))
    assert "set mine" in table and TEXT in table
    assert "nothing is evaluated" not in table and "GRPO" not in table


def test_report_of_eval_has_results_and_samples(eval_run: RunDir) -> None:
    page = write_report(eval_run).read_text()
    assert TEXT in page and "0.540 ± 0.080" in page and "0 mine" in page
    assert "nothing is evaluated" not in page and "GRPO steps" not in page


def test_status_and_log_line_of_eval_have_result(eval_run: RunDir) -> None:
    assert list(describe_results(eval_run)) == [f"set     mine: {TEXT} (step 0)"]
    assert render_row(0, "eval", RESULT, 0.0).endswith(f"eval step 0: set mine {TEXT}")


def test_table_of_training_has_change_of_each_set(run: RunDir) -> None:
    rows = [make_row(0, "eval", **{**RESULT, "set/mine/avg@4": 0.25}), make_row(1, "grpo")]
    fill(run.metrics, [*rows, make_row(1, "eval", **RESULT)])
    table = render(write_summary(run))
    assert "avg@4 0.250 -> 0.540 ± 0.080, pass@2" in table


@pytest.mark.parametrize(
    ("accuracies", "rewards", "is_found"),
    [
        ([0.2, 0.82, 0.36], (0.9, 0.98), True),
        ([0.2, 0.82, 0.36], (0.98, 0.9), False),  # the reward fell, too
        ([0.2, 0.82, 0.78], (0.9, 0.98), False),  # within the noise of 100 rows
        ([0.2, 0.36, 0.82], (0.9, 0.98), False),
    ],
)
def test_divergence_is_found_when_accuracy_falls_and_reward_rises(
    accuracies: list[float], rewards: tuple[float, float], is_found: bool
) -> None:
    rows = []
    for number, accuracy in enumerate(accuracies):
        rows.append(make_row(number * 20, "eval", **{"accuracy/sampled": accuracy}))
        if number == len(accuracies) - 1:
            break
        for step in range(20):
            share = (number * 20 + step) / 40
            reward = rewards[0] + share * (rewards[1] - rewards[0])
            rows.append(make_row(number * 20 + step + 1, "grpo", **{"reward/mean": reward}))
    found = find_divergence(rows, num_held_out=100)
    assert bool(found) is is_found
    if is_found:
        assert "held-out accuracy (sampled) fell from 0.820 (step 20) to 0.360 (step 40)" in found[0]


def test_divergence_is_shown_in_table_report_and_status(run: RunDir) -> None:
    fill(
        run.events, [{"time": 1.0, "kind": "data/loaded", "train": 9, "held_out": 100, "overlapping": 0, "overlong": 0}]
    )
    fill(run.metrics, [make_row(0, "eval", **{"accuracy/greedy": 0.82})])
    fill(run.metrics, [make_row(step, "grpo", **{"reward/mean": 0.9 + step / 400}) for step in range(1, 31)])
    fill(run.metrics, [make_row(30, "eval", **{"accuracy/greedy": 0.36})])
    words = "fell from 0.820 (step 0) to 0.360 (step 30)"
    assert words in render(write_summary(run)).replace("\n", " ")
    assert words in write_report(run).read_text()
    lines = list(describe_results(run))
    assert (
        lines[0] == "eval    held out: greedy 0.360 (step 30)" and lines[1].startswith("warning ") and words in lines[1]
    )


def test_report_draws_scores_of_reward_functions_and_sets(run: RunDir) -> None:
    rows = [make_row(step, "grpo", **{"score/my_reward": step / 9}) for step in range(4)]
    fill(run.metrics, [*rows, make_row(3, "eval", **RESULT)])
    page = write_report(run).read_text()
    assert "<h3>Score my_reward</h3>" in page and "<h3>Set mine/avg@4</h3>" in page
