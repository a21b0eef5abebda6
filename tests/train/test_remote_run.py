"""A run that loses its machine with all files resumes from the copy at its URL."""

import shutil
from pathlib import Path

import pytest

from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_secret import TOKEN_VARIABLE
from tests.train.test_run import kill_driver_when
from tests.whole_run import exact_rows, finish, start_run


@pytest.mark.slow
def test_run_without_folder_resumes_from_url(whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "the same on every machine")
    run_dir, url = tmp_path / "lost", f"checkpoint.upload_url='file://{tmp_path}/bucket'"

    def copied(step: int) -> bool:
        rows = read_rows(run_dir / "events.jsonl")
        return any(row["kind"] == "checkpoint/copied" and row["step"] >= step for row in rows)

    kill_driver_when(start_run(run_dir, url), run_dir, lambda: copied(42))
    shutil.rmtree(run_dir)
    finish(start_run(run_dir, url))
    [fetched] = [row for row in read_rows(run_dir / "events.jsonl") if row["kind"] == "checkpoint/fetched"]
    assert fetched["step"] >= 42
    assert exact_rows(run_dir) == exact_rows(whole_run)
    copies = {path.name for path in (tmp_path / "bucket" / "lost").iterdir()}
    assert {"reference", "step-46", "export"} <= copies
    # The attempt number was lost with the folder.
    assert len([name for name in copies if name.startswith("attempt-1-")]) == 2
    kept = [name for name in copies if name.startswith("step-")]
    assert len(kept) <= 3, "the newest two, the best"
