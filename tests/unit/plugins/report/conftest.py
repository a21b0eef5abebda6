import pytest

from slurm_rl.run_dir.run_dir import RunDir

from .sample_run import fill, make_events, make_rows


@pytest.fixture
def finished_run(run: RunDir) -> RunDir:
    fill(run.events, make_events())
    fill(run.metrics, make_rows())
    run.config.write_text("model:\n  path: org/some-model\nname: addition\n", encoding="utf-8")
    return run
