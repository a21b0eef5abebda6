"""Output of the goodput ledger in all reports.

To update: `python -m tests.unit.plugins.goodput.test_shown` writes tests/golden/goodput.txt.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.job import LoggingConfig
from slurm_rl.plugins.goodput.command import render_one
from slurm_rl.plugins.goodput.ledger import build_ledger
from slurm_rl.plugins.goodput.read import compute_mfu, read_ledger
from slurm_rl.plugins.goodput.render import render_line
from slurm_rl.plugins.goodput.types import BUCKETS
from slurm_rl.plugins.report.html import write_report
from slurm_rl.plugins.report.summary import write_summary
from slurm_rl.plugins.sinks.wandb_run import WandbRun
from slurm_rl.run_dir.jsonl import append_row
from slurm_rl.run_dir.run_dir import RunDir, write_json, write_text
from slurm_rl.trainers.common.metrics_log import MetricsLogger
from tests.unit.plugins.goodput.story import Story

GPUS = {"gpus_per_node": 8, "num_nodes": 512}
HOUR = 3600.0
GOLDEN = Path(__file__).parents[3] / "golden/goodput.txt"


def write_run(path: Path, story: Story, **plan: Any) -> RunDir:
    run = RunDir(path)
    write_json(run.plan, {**GPUS, **plan})
    write_text(run.config, "model: {path: Qwen/Qwen3-8B}\ncluster: {gpu_type: h100}\n")
    for event in story.events:
        append_row(run.events, event)
    for attempt, rows in story.steps.items():
        for row in rows:
            append_row(run.attempt(attempt).steps, row)
    return run


def golden(begin: float = 0.0) -> Story:
    """4,096 GPUs for an hour: two attempts end at node n17 with driver error Xid 79."""
    story = Story(nodes=512, gpus=4096).event(begin, "job/submitted")
    at = begin + 7 * HOUR
    unfit = {"node": "n17", "check": "xid", "value": "Xid 79", "strength": "hard"}
    story.start(at, start_time=at).rows(at + 108, 1, 100, 10.0).row(at + 1108, 18, 100, "save")
    story.event(at + 1126, "checkpoint/saved", step=100)
    # 34 s before the next step without any event.
    for place in range(2):
        now, first = at + 1160 + 1072 * place, 101 + 100 * place
        story.rows(now, first, first + 102)
        story.event(now + 1000, "checkpoint/saved", step=first + 99)
        story.event(now + 1032, "node/unfit", **unfit).event(now + 1032, "nodes/lost", hosts=["n17"])
        story.end(now + 1033, "lost").start(now + 1034)
        story.event(now + 1050, "trainer/resumed", step=first + 99)
    story.rows(at + 3304, 301, 327, 10.0).row(at + 3574, 18, 327, "save")
    return story.end(at + 3600, "finished")


def render_golden() -> str:
    """Return the output of the verb for that run."""
    # A fixed width, independent of the terminal.
    with tempfile.TemporaryDirectory() as folder, patch("slurm_rl.plugins.goodput.command.find_width", lambda: None):
        run = write_run(Path(folder) / "golden", golden(begin=1e9))
        ledger = read_ledger(run)
        # Queued for seven hours and running for one.
        assert ledger is not None and ledger.ettr == pytest.approx((ledger.goodput or 0.0) / 8)
        return render_one(run, ledger) + "\n"


def test_text_of_golden_run_matches() -> None:
    assert render_golden() == GOLDEN.read_text(encoding="utf-8")


def test_verb_over_run_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "runs" / "a", golden(begin=1e9))
    write_run(tmp_path / "runs" / "sweep" / "0", golden(begin=1.1e9))
    on_cpus = Story(nodes=2).start(1.2e9).rows(1.2e9, 1, 9).end(1.2e9 + 100, "finished")
    write_run(tmp_path / "runs" / "cpu", on_cpus, gpus_per_node=0)
    queued = write_run(tmp_path / "runs" / "queued", Story().event(1.2e9, "job/submitted"))
    assert write_summary(queued)["goodput"] is None and "Where the time went" not in write_report(queued).read_text()

    assert main(["report", "--goodput", str(first.path)]) == 0
    one = capsys.readouterr().out
    assert one.startswith("4,096 GPU-hours: ") and all(name.replace("_", "-") in one for name in BUCKETS)

    assert main(["report", "--goodput", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["a", "0", "cpu"]

    assert main(["report", "--goodput", str(tmp_path / "runs"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sorted(Path(row["run_dir"]).name for row in rows) == ["0", "a", "cpu"]
    assert main(["report", "--goodput", str(queued.path)]) == 0
    assert "no attempt" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main(["report", "--goodput", str(tmp_path / "empty")]) == 2
    assert "must be a run, or a folder" in capsys.readouterr().err


def test_goodput_is_in_summary_and_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", golden())
    append_row(run.metrics, {"step": 1, "stage": "grpo", "reward/mean": 0.5, "tokens/computed": 1e12})
    summary = write_summary(run)["goodput"]
    assert summary["sentence"].startswith("4,096 GPU-hours: ") and summary["lost_to"][0]["name"] == "n17"
    assert sum(summary["buckets"].values()) == pytest.approx(summary["held"])
    assert summary["mfu"] == pytest.approx(6 * 8.19e9 * 1e12 / (summary["buckets"]["trained"] * 989e12), rel=0.01)
    text = write_report(run).read_text()
    assert "Where the time went" in text and summary["sentence"] in text


def test_unknown_mfu_is_explained() -> None:
    story = Story().start(0).rows(0, 1, 9).end(90, "finished")
    ledger = build_ledger(story.events, story.steps)
    assert ledger is not None
    for config, why in (
        ({"cluster": {"gpu_type": "tpu9"}}, "the peak of tpu9 is unknown"),
        ({"cluster": {}}, "cluster.gpu_type is not set"),
        ({"cluster": {"gpu_type": "h100"}, "model": {"path": "me/mine"}}, "the size of the model is unknown"),
    ):
        found = compute_mfu(ledger, [], config)
        assert found.value is None and why in found.why


def test_wandb_gets_goodput_at_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = write_run(tmp_path / "a", golden()), dict[str, float | str]()
    folder = SimpleNamespace(sync_dir="/none")
    wandb = SimpleNamespace(settings=folder, summary=told, finish=lambda: told.setdefault("closed", 1.0))
    monkeypatch.setattr("slurm_rl.plugins.sinks.wandb_run.open_wandb", lambda *_: WandbRun(run, wandb))
    MetricsLogger(run, LoggingConfig(), "a", {}).close()
    ledger = read_ledger(run)
    assert ledger is not None
    values = {"goodput/goodput": ledger.goodput, "goodput/sentence": render_line(ledger), "closed": 1.0}
    assert values.items() <= told.items()


if __name__ == "__main__":
    GOLDEN.write_text(render_golden(), encoding="utf-8")
