from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.controller.record import record_end, record_job
from slurm_rl.launch.runs.pipeline import PIPELINE_FILE, Stage, find_stages, parse_stages, place_stages
from slurm_rl.launch.runs.start import create_stages
from slurm_rl.run_dir.run_dir import RunDir, write_text

FILE = "sft: +exp=sft_tiny\ngrpo: +exp=demo model=hf 'model.path={sft}/export'\n"


def test_stage_follows_previous_and_has_its_folder(tmp_path: Path) -> None:
    first, second = place_stages(parse_stages(FILE, "a.yaml"), tmp_path, ["seed=3"])
    assert first == ["+exp=sft_tiny", "seed=3", f"run_dir={tmp_path}/sft"]
    last = ["seed=3", f"run_dir={tmp_path}/grpo", f"job.depends_on={tmp_path}/sft"]
    assert second == ["+exp=demo", "model=hf", f"model.path={tmp_path}/sft/export", *last]
    dictionary = Stage("a", ("+cluster.env={A: 1}", "name=${task}"))
    assert place_stages([dictionary], tmp_path)[0][:2] == list(dictionary.words)


WRONG = {
    "": "must be a mapping of stages",
    "a: [b]": "one line of overrides",
    "a b: seed=1": "a stage's name",
    "a: run_dir=x": "run_dir is set by the pipeline",
    "a: seed=1\nb: job.depends_on=x": r"job\.depends_on is set by the pipeline",
    "a: {": r"not valid YAML; got .*, line 1, column 5",
    "a: seed=1\na: seed=2": "duplicate key 'a'",
    "a: model.path={b}/export\nb: seed=1": "may refer only to earlier stages: there are none",
}


@pytest.mark.parametrize("text", WRONG)
def test_pipeline_errors_are_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]):
        place_stages(parse_stages(text, "a.yaml"), tmp_path)


def test_refused_stage_leaves_no_stage(tmp_path: Path) -> None:
    placed = place_stages(parse_stages(FILE, "a.yaml"), tmp_path)
    placed[1].append("model.path=/not/there")
    with pytest.raises(ConfigError, match=r"model\.path must be a folder"):
        create_stages([load_config(words) for words in placed], lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_status_lists_stages_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placed = place_stages(parse_stages(FILE, "a.yaml"), tmp_path)
    runs = create_stages([load_config(words) for words in placed], lambda line: None)
    write_text(tmp_path / PIPELINE_FILE, FILE)
    assert [run.path for run in find_stages(tmp_path)] == [run.path for run in runs]
    record_job(RunDir(tmp_path / "sft"), "local", "1")
    record_end(RunDir(tmp_path / "sft"), "failed", 1, "the disk is full")
    assert main(["status", str(tmp_path)]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["sft", "failed"], ["grpo", "not"]] and "STATE" in heading
    assert "the disk is full" in lines[0]
