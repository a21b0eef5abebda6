from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError, RunDirError
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.controller.record import record_end, record_job, require_finished
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.model_shape import find_shape
from slurm_rl.launch.runs.start import plan_in
from slurm_rl.launch.slurm.exclude import with_dependency
from slurm_rl.run_dir.run_dir import RunDir
from tests.tiny_models import TinyModel


@pytest.fixture
def first(tmp_path: Path) -> RunDir:
    """Return an unfinished run on Slurm."""
    config, run = load_config(["+exp=sft_tiny", TinyModel(num_layers=5).word]), RunDir(tmp_path / "first")
    create_run(run, config, plan_in(config, run))
    record_job(run, "slurm", "7")
    return run


def words_after(first: RunDir, *words: str) -> list[str]:
    return ["+exp=demo", "model=hf", f"model.path={first.export}", f"job.depends_on={first.path}", *words]


def test_model_is_planned_from_predecessors_export(first: RunDir, tmp_path: Path) -> None:
    config = load_config(words_after(first))
    shape = find_shape(config.model)
    assert shape is not None and shape.num_layers == 5
    assert plan_in(config, RunDir(tmp_path / "second")).after == str(first.path)
    first.export.mkdir()  # the export's config.json takes precedence
    assert find_shape(config.model) is None


def test_slurm_dependency_waits_for_unfinished_job(first: RunDir) -> None:
    waits = {"dependency": "afterok:7", "kill-on-invalid-dep": "yes"}
    assert with_dependency({"nodes": 1}, str(first.path)) == {"nodes": 1, **waits}
    asked = with_dependency({"dependency": "singleton"}, str(first.path))
    assert asked == {**waits, "dependency": "singleton,afterok:7"}
    assert with_dependency({"nodes": 1}, None) == {"nodes": 1}
    record_end(first, "finished", 0, "")
    assert with_dependency({"nodes": 1}, str(first.path)) == {"nodes": 1}, "there is nothing to wait for"


def test_unfinished_predecessor_is_refused_without_queue_and_at_start(first: RunDir) -> None:
    here, on_slurm = (load_config(words_after(first, *words)) for words in ([], ["+cluster=slurm_cpu"]))
    with pytest.raises(ConfigError, match="there is no queue to wait in"):
        check_inputs(here, lambda line: None)
    with pytest.raises(RunDirError, match=f"{first.path} has not ended"):
        require_finished(first)
    record_end(first, "failed", 1, "the disk is full")
    with pytest.raises(RunDirError, match="the disk is full"):
        check_inputs(on_slurm, lambda line: None)
    said = f"{first.path} is failed: the disk is full.*python -m slurm_rl resume {first.path}"
    with pytest.raises(RunDirError, match=said):
        require_finished(first)
    record_end(first, "finished", 0, "")
    require_finished(first)
    check_inputs(here, lambda line: None)
