from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from slurm_rl.__main__ import main
from slurm_rl.cli.sweep import choose_metric
from slurm_rl.config.load import compose
from slurm_rl.launch.sweep.ledger import Ledger, SweepDir, SweepRun, save_ledger
from slurm_rl.plugins.report.leaderboard import RankedRun, render_standings
from slurm_rl.run_dir.run_dir import RunDir, write_json

from .sample_run import fill, make_row

RUNS = [
    RankedRun(
        str(n),
        {"algorithm.group_size": "16", "optim.lr": f"{n}e-5", "model.path": f"/shared/models/org/model-{n}"},
        0.5,
        "finished",
    )
    for n in range(3)
]


def test_terminal_has_short_keys_and_full_lines() -> None:
    table = render_standings(RUNS, "accuracy.after.sampled", 80).splitlines()
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["#", "accuracy.after.sampled", "RUN", "STATE", "STEP", "group_size", "lr", "path"]
    # A long value keeps its first and last characters.
    assert [row.split()[7][-2:] for row in table[1:]] == ["-0", "-1", "-2"] and "…" in table[1]


def test_file_has_full_keys_and_values() -> None:
    table = render_standings(RUNS, "accuracy.after.sampled").splitlines()
    assert "algorithm.group_size" in table[0] and "/shared/models/org/model-2" in table[3]


@pytest.mark.parametrize("width", [20, 40, 79])
def test_more_keys_never_lengthen_line(width: int) -> None:
    many = [RankedRun("0", {f"section.key{n}": "value" * 5 for n in range(12)}, None, "running")]
    table = render_standings(many, "reward/mean", width).splitlines()
    assert max(map(len, table)) <= width
    assert width == 20 or "running" in table[1]


def make_sweep(folder: Path, metric: str, rows: list[dict[str, Any]], *, smallest_first: bool = False) -> SweepDir:
    """A sweep of two finished runs; the second one's numbers are twice the first one's."""
    sweep = SweepDir(folder / "sweep")
    for index in range(2):
        run = sweep.run(index)
        run.path.mkdir(parents=True)
        write_json(run.end, {"state": "finished", "exit_code": 0, "cause": "", "step": 3})
        scaled = [{k: v * (index + 1) if "/" in k and "time" not in k else v for k, v in row.items()} for row in rows]
        fill(run.metrics, scaled)
    runs = tuple(SweepRun(index, (f"optim.lr={index}e-4", "+exp=a")) for index in range(2))
    save_ledger(sweep, Ledger("a", metric, smallest_first, runs))
    return sweep


@pytest.mark.parametrize(
    ("words", "named", "metric", "smallest_first"),
    [
        (["+exp=sft_tiny"], None, "eval/loss", True),
        (["task=rm"], None, "eval/loss", True),
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
    sweep = make_sweep(tmp_path, "reward/mean", [make_row(3, "grpo", **{"reward/mean": 0.5})])
    assert main(["status", str(sweep.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"sweep   {sweep.path}", "runs    2 finished"]
    assert [line.split()[:5] for line in lines[3:]] == [
        ["1", "1", "1", "finished", "3"],
        ["2", "0.5", "0", "finished", "3"],
    ]


def test_results_of_sft_are_ranked_by_held_out_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "eval/loss", [make_row(3, "eval", **{"eval/loss": 0.5})], smallest_first=True)
    assert main(["status", str(sweep.path), "--min"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[3:]] == [["1", "0.5", "0"], ["2", "1", "1"]]


def test_results_without_default_metric_show_runs_and_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "accuracy.after.best", [make_row(3, "grpo", **{"reward/mean": 0.5})])
    assert main(["status", str(sweep.path), "--max"]) == 0
    said = capsys.readouterr()
    assert "runs    2 finished" in said.out
    assert "no run has the metric accuracy.after.best" in said.err and len(said.err) < 300


def test_results_refuse_unknown_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "reward/mean", [make_row(3, "grpo", **{"reward/mean": 0.5})])
    assert main(["status", str(sweep.path), "--metric", "reward/maen"]) == 2
    said = capsys.readouterr().err
    assert "no run has the metric reward/maen" in said and "did you mean reward/mean?" in said and len(said) < 300


def test_report_of_sweep_names_swept_values_in_legends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [make_row(step, "grpo", **{"reward/mean": step / 9}) for step in range(3)]
    sweep = make_sweep(tmp_path, "reward/mean", rows)
    assert main(["report", str(sweep.path)]) == 0
    page = RunDir(sweep.path).report.read_text()
    assert ">0: lr=0e-4<" in page and ">1: lr=1e-4<" in page and "Curves of the best 2" in page
