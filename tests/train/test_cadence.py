"""The time of saves changes no metric, so a clock may decide it (checkpoint.interval=auto)."""

from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.trainers.common import cadence
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import run_training
from tests.train.test_supervised import TASKS, make_run
from tests.whole_run import exact_rows, start_run


def saved_steps(run: Path) -> list[int]:
    return [row["step"] for row in read_rows(run / "events.jsonl") if row["kind"] == "checkpoint/saved"]


def test_save_interval_keeps_supervised_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadence, "FIRST_EVERY", 1)
    # So that steps of milliseconds change the interval at once.
    monkeypatch.setattr(cadence, "LEAST_SAVES", 1)
    rows, saves = {}, {}
    for every in ("1", "3", "auto"):
        run, config = make_run(tmp_path / every, TASKS["dpo-cached"][0], f"checkpoint.interval={every}")
        run_training(run, config, RankInfo())
        rows[every], saves[every] = exact_rows(run.path), saved_steps(run.path)
    assert rows["1"] == rows["3"] == rows["auto"]
    assert len(rows["1"]) > 3 and len(saves["1"]) > len(saves["3"])
    assert saves["auto"][0] == 0 and saves["auto"] != saves["3"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", [(), ("rollout.max_off_policy_steps=2", "algorithm.correction.kind=token_tis")])
def test_save_interval_keeps_grpo_metrics(words: tuple[str, ...], tmp_path: Path) -> None:
    rows, saves = [], []
    for every in ("1", "4", "auto"):
        run = tmp_path / every
        process = start_run(run, f"checkpoint.interval={every}", *words)
        output = process.communicate(timeout=900)[0]
        assert process.returncode == 0, output
        rows.append(exact_rows(run))
        saves.append(saved_steps(run))
    assert rows[0] == rows[1] == rows[2]
    assert len({tuple(each) for each in saves}) == 3, saves
