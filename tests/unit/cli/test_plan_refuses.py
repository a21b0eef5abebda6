import json
from pathlib import Path

import pytest

from slurm_rl.__main__ import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a model without pad token and an invalid image file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer_config.json").write_text("[")
    (tmp_path / "reward.py").write_text("def score(queries, prompts, labels): ...\n")
    (tmp_path / "rl.sqsh").write_bytes(b"no squashfs")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("{}")
    return tmp_path


REFUSED = {
    "a model folder that is not there": ["model=hf", "model.path=/nowhere"],
    "a home that is nobody's": ["reward.function='~nobody-of-this-name/reward.py:score'"],
    "a tokenizer without a pad token": ["model=hf", "model.path=./model"],
    "a tokenizer that is no JSON": ["model=hf", "model.path=./broken"],
    "a data file that is not there": ["+data=gsm8k", "data.train=/nowhere.jsonl", "data.max_prompt_tokens=16"],
    "a reward function that is not in its file": ["reward.function=reward.py:other"],
    "an image that is none": ["container.runtime=pyxis", "container.image={folder}/rl.sqsh"],
    "an image that is not there": ["container.runtime=pyxis", "container.image={folder}/other.sqsh"],
    "a run directory with a run": ["run_dir={folder}/run"],
    "a run directory with other files": ["run_dir={folder}/full"],
    "a run directory below a file": ["run_dir={folder}/reward.py/run"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_plan_refuses_in_words_of_submit(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+exp=demo", *(word.format(folder=folder) for word in REFUSED[name])]
    before = sorted(folder.rglob("*"))
    assert main(["submit", *words]) == 2
    submit = capsys.readouterr()
    assert main(["plan", *words]) == 2
    plan = capsys.readouterr()
    assert plan.err == submit.err != ""
    assert plan.out.startswith("run\n")
    assert sorted(folder.rglob("*")) == before, "neither leaves anything"


def test_json_refusals_are_not_in_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "+exp=demo", "reward.function=reward.py:other"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["launcher"] == "local"
    assert "must define other" in shown.err


def test_refusals_are_listed_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+exp=demo", "run_dir=full", "model.init_from=/nowhere", "reward.function=reward.py:other"]
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err
    assert "3 errors:" in told
    for said in ("new or empty folder", "model.init_from must be a folder", "must define other"):
        assert said in told


def test_valid_config_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+exp=demo", "reward.function=reward.py:score", "run_dir=new/run"]) == 0
    assert capsys.readouterr().err == ""


def test_plan_calls_no_scheduler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("plan is offline")

    monkeypatch.setattr("slurm_rl.launch.slurm.admission.check_admission", fail)
    monkeypatch.setattr("slurm_rl.launch.ray.launcher.open_dashboard", fail)
    assert main(["plan", "+exp=demo", "+cluster=slurm_cpu"]) == 0
    assert main(["plan", "+exp=demo", "+cluster=ray", "cluster.address=http://nowhere:8265"]) in (0, 2)
