import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from slurm_rl.__main__ import main
from slurm_rl.cli.sweep import choose_metric
from slurm_rl.config.load import compose
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger
from slurm_rl.plugins.report.episodes import render_episodes
from slurm_rl.plugins.report.leaderboard import RankedRun, render_standings
from slurm_rl.run_dir.run_dir import RunDir, write_json

from .sample_run import fill, make_row


def test_terminal_has_short_keys_and_file_full_ones() -> None:
    swept = {"algorithm.group_size": "16", "optim.lr": "1e-5"}
    runs = [
        RankedRun(str(n), {**swept, "model.path": f"/shared/models/org/model-{n}"}, 0.5, "finished") for n in range(3)
    ]
    table = render_standings(runs, "accuracy.after.sampled", 80).splitlines()
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["#", "accuracy.after.sampled", "RUN", "STATE", "STEP", "group_size", "lr", "path"]
    # A long value keeps its first and last characters.
    assert [row.split()[7][-2:] for row in table[1:]] == ["-0", "-1", "-2"] and "…" in table[1]
    table = render_standings(runs, "accuracy.after.sampled").splitlines()
    assert "algorithm.group_size" in table[0] and "/shared/models/org/model-2" in table[3]


@pytest.mark.parametrize("width", [20, 40, 79])
def test_more_keys_never_lengthen_line(width: int) -> None:
    many = [RankedRun("0", {f"section.key{n}": "value" * 5 for n in range(12)}, None, "running")]
    table = render_standings(many, "reward/mean", width).splitlines()
    assert max(map(len, table)) <= width
    assert width == 20 or "running" in table[1]


def make_sweep(folder: Path, metric: str, rows: list[dict[str, Any]]) -> SweepDir:
    """A sweep of two finished runs; the second one's numbers are twice the first one's."""
    sweep = SweepDir(folder / "sweep")
    for index in range(2):
        run = sweep.run(index)
        run.path.mkdir(parents=True)
        write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 3})
        scaled = [{k: v * (index + 1) if "/" in k and "time" not in k else v for k, v in row.items()} for row in rows]
        fill(run.metrics, scaled)
    runs = tuple(SweepRun(index, (f"optim.lr={index}e-4", "+exp=a")) for index in range(2))
    save_ledger(sweep, Ledger("a", metric, False, runs))
    return sweep


@pytest.mark.parametrize(
    ("words", "named", "metric", "smallest_first"),
    [
        (["+exp=sft_tiny"], None, "eval/loss", True),
        (["task=dpo"], None, "eval/loss", True),
        (["+exp=demo"], None, "accuracy.after.sampled", False),
        (["+exp=demo"], "reward/mean", "reward/mean", False),
        (["eval.only=true", "+eval.sets.a={data: addition, num_samples: 4}"], None, "set/a/avg@4", False),
    ],
)
def test_choose_metric_follows_task(words: list[str], named: str | None, metric: str, smallest_first: bool) -> None:
    config = OmegaConf.create(compose(words))
    assert isinstance(config, DictConfig)
    assert choose_metric(config, named, smallest_first=False) == (metric, smallest_first)


def test_status_of_sweep_prints_leaderboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "accuracy.after.best", [make_row(3, "grpo", **{"reward/mean": 0.5})])

    def ask(*flags: str, code: int = 0) -> tuple[list[str], str]:
        assert main(["status", str(sweep.path), *flags]) == code
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err

    for flag, ranked in (
        ("--max", [["1", "1", "1"], ["2", "0.5", "0"]]),
        ("--min", [["1", "0.5", "0"], ["2", "1", "1"]]),
    ):
        lines, _ = ask("--metric", "reward/mean", flag)
        assert lines[:2] == [f"sweep   {sweep.path}", "runs    2 finished"]
        assert [line.split()[:5] for line in lines[3:]] == [[*row, "finished", "3"] for row in ranked]
    lines, error = ask()
    assert "runs    2 finished" in lines
    assert "no run has the metric accuracy.after.best" in error and len(error) < 300
    _, error = ask("--metric", "reward/maen", code=2)
    assert "did you mean reward/mean?" in error and len(error) < 300


def test_report_of_sweep_names_swept_values_in_legends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [make_row(step, "grpo", **{"reward/mean": step / 9}) for step in range(3)]
    sweep = make_sweep(tmp_path, "reward/mean", rows)
    assert main(["report", str(sweep.path)]) == 0
    page = RunDir(sweep.path).report.read_text()
    assert ">0: lr=0e-4<" in page and ">1: lr=1e-4<" in page and "Curves of the best 2" in page


SINGLE = {"step": 1, "prompt": "3+4=", "completion": "7", "answer": "7", "reward": 1.0}
TURNS = [
    {"start": 0, "end": 1, "reply": "6", "observation": "<", "reward": None},
    {"start": 2, "end": 3, "reply": "3", "observation": "", "reward": 0.5},
]
GAME = {"step": 2, "prompt": "?", "completion": "3", "answer": "3", "reward": 0.5, "turns": TURNS}
FAILED = {"step": 2, "prompt": "?", "completion": "\x1b[2J", "answer": "", "reward": None}


def test_turns_are_in_order_with_text_and_reward() -> None:
    assert render_episodes([GAME]).splitlines() == [
        "step 2, reward 0.5, answer '3'",
        "  prompt       '?'",
        "  turn 1       '6'",
        "  observation  '<'",
        "  turn 2       '3'   reward 0.5",
    ]


def test_single_turn_and_failed_one_are_episodes() -> None:
    assert "turn 1       '7'" in render_episodes([SINGLE])
    assert render_episodes([FAILED]).startswith("step 2, reward failed\n")


def test_newest_step_is_shown_and_others_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text("{}")
    assert main(["samples", str(tmp_path)]) == 2
    assert "after its first step was logged" in capsys.readouterr().err
    lines = [json.dumps(row) for row in (SINGLE, GAME, FAILED)]
    (tmp_path / "samples.jsonl").write_text("\n".join([*lines, "torn {"]) + "\n")
    assert main(["samples", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("step 2") == 2 and "step 1" not in shown and "\x1b" not in shown
    assert main(["samples", str(tmp_path), "--step", "1"]) == 0
    assert "'3+4='" in capsys.readouterr().out
    assert main(["samples", str(tmp_path), "--step", "9"]) == 2
    assert "from 1 to 2" in capsys.readouterr().err


def test_tool_calls_are_followed_by_results() -> None:
    made = {"name": "add", "arguments": '{"a": 1}', "result": "2=", "error": None}
    wrong = {"name": "", "arguments": "[add(", "result": "Error: cut", "error": "cut"}
    turns = [
        {"reply": "[add(a=1)][add(", "observation": "2=\nError: cut", "reward": None, "calls": [made, wrong]},
        {"reply": "2", "observation": "", "reward": 1.0, "calls": []},
    ]
    assert render_episodes([{**GAME, "turns": turns}]).splitlines()[2:] == [
        "  turn 1       '[add(a=1)][add('",
        "  call         'add({\"a\": 1})' -> '2='",
        "  call         '([add()' -> cut: 'Error: cut'",
        "  turn 2       '2'   reward 1",
    ]
