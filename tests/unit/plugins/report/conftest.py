from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import RunDir

from .sample_run import fill, make_events, make_rows


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "addition-1")


@pytest.fixture
def finished_run(run: RunDir) -> RunDir:
    fill(run.events, make_events())
    fill(run.metrics, make_rows())
    run.config.write_text("model:\n  path: org/some-model\nname: addition\n", encoding="utf-8")
    return run


@pytest.fixture
def scripted_is_alive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], bool]]:
    """Return an `is_alive` that runs one action per call and is false at the last; time does not pass."""
    monkeypatch.setattr("slurm_rl.cli.progress.REFRESH_S", 0.0)

    def script(*actions: Callable[[], object]) -> Callable[[], bool]:
        left = list(actions)

        def is_alive() -> bool:
            left.pop(0)()
            return bool(left)

        return is_alive

    return script
