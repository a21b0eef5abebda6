"""The time of saves changes no metric, so a clock may decide it (checkpoint.interval=auto)."""

from pathlib import Path

import pytest

from slurm_rl.trainers.common import cadence
from slurm_rl.trainers.supervised.rank_info import RankInfo
from slurm_rl.trainers.supervised.run_supervised import run_training
from tests.train.test_supervised import TASKS, make_run
from tests.whole_run import events_of, exact_rows, train


def test_save_interval_keeps_supervised_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadence, "FIRST_EVERY", 1)
    # So that steps of milliseconds change the interval at once.
    monkeypatch.setattr(cadence, "LEAST_SAVES", 1)
    rows, saves = {}, {}
    for every in ("1", "3", "auto"):
        run, config = make_run(tmp_path / every, TASKS["dpo-cached"][0], f"checkpoint.interval={every}")
        run_training(run, config, RankInfo())
        rows[every], saves[every] = (
            exact_rows(run.path),
            [row["step"] for row in events_of(run.path, "checkpoint/saved")],
        )
    assert rows["1"] == rows["3"] == rows["auto"]
    assert len(rows["1"]) > 3 and len(saves["1"]) > len(saves["3"])
    assert saves["auto"][0] == 0 and saves["auto"] != saves["3"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("words", [(), ("rollout.max_off_policy_steps=2", "algorithm.correction.kind=token_tis")])
def test_save_interval_keeps_grpo_metrics(words: tuple[str, ...], tmp_path: Path) -> None:
    rows, saves = [], []
    for every in ("1", "4", "auto"):
        rows.append(train(tmp_path / every, f"checkpoint.interval={every}", *words))
        saves.append(tuple(row["step"] for row in events_of(tmp_path / every, "checkpoint/saved")))
    assert rows[0] == rows[1] == rows[2]
    assert len(set(saves)) == 3, saves
