"""A new project trains as `init` writes it, with real Ray, vLLM and torch on CPU."""

from pathlib import Path

import pytest

from tests.whole_run import run_cli, stage_rows


@pytest.mark.slow
def test_new_project_trains_as_written(tmp_path: Path) -> None:
    project = tmp_path / "my-project"
    run_cli(tmp_path, "init", "my-project")
    run_cli(project, "+exp=my-project_tiny")
    [run] = (project / "runs").iterdir()
    before, after = (row["accuracy/sampled"] for row in stage_rows(run, "eval"))
    assert 0.5 < before < after
    assert len(stage_rows(run)) == 40
    assert "finished" in run_cli(project, "status")
