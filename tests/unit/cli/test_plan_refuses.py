import json
from pathlib import Path

import pytest

from slurm_rl.__main__ import main

CaptureText = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a model without pad token and an invalid image file."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "model/tokenizer_config.json": "{}",
        "broken/tokenizer_config.json": "[",
        "reward.py": "def score(queries, prompts, labels): ...\n",
        "rl.sqsh": "no squashfs",
        "full/notes.txt": "",
        "run/plan.json": "{}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


REFUSED = {
    "a model folder that is not there": ["model=hf", "model.path=/nowhere"],
    "a home that is nobody's": ["reward.function='~nobody-of-this-name/reward.py:score'"],
    "a tokenizer without a pad token": ["model=hf", "model.path=./model"],
    "a tokenizer that is no JSON": ["model=hf", "model.path=./broken"],
    "a data file that is not there": ["+data=gsm8k", "data.train=/nowhere.jsonl", "data.max_prompt_tokens=16"],
    "a reward function that is not in its file": ["reward.function=reward.py:other"],
    "an image that is none": ["container.runtime=pyxis", "container.image={folder}/rl.sqsh"],
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


def test_refusals_are_listed_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+exp=demo", "run_dir=full", "model.init_from=/nowhere", "reward.function=reward.py:other"]
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err
    for said in ("3 errors:", "new or empty folder", "model.init_from must be a folder", "must define other"):
        assert said in told
    assert main(["plan", "--json", *words]) == 2
    assert json.loads(capsys.readouterr().out)["launcher"] == "local", "no refusal in the plan"


def test_valid_config_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+exp=demo", "reward.function=reward.py:score", "run_dir=new/run"]) == 0
    assert capsys.readouterr().err == ""


def test_plan_calls_no_existing_ray_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("plan is offline")

    monkeypatch.setattr("slurm_rl.launch.ray.launcher.open_dashboard", fail)
    assert main(["plan", "+exp=demo", "+cluster=ray", "cluster.address=http://nowhere:8265"]) in (0, 2)


@pytest.mark.parametrize(
    ("says", "code", "shown"),
    [
        (None, 0, "unchecked: partition, account and limits: sinfo must be on PATH. Next: run on a login node"),
        ("fatal: Could not establish a configuration source", 0, "got fatal: Could not establish a configuration"),
        (
            "error: Unable to contact slurm controller (connect failure)",
            0,
            "got Unable to contact slurm controller",
        ),
        ("error: invalid partition specified: nowhere", 2, "invalid partition specified: nowhere"),
    ],
)
def test_plan_has_verdict_of_slurm_if_it_answers(
    says: str | None, code: int, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CaptureText
) -> None:
    """The program stands in for Slurm's; tests/slurm/test_submit_checks.py asks a real one."""
    if says:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho 'sinfo: {says}' >&2; exit 1\n")
        (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["plan", "+exp=demo", "+cluster=slurm_cpu"]) == code
    said = capsys.readouterr()
    assert shown in said.err and said.out.endswith("\nvalid, not submitted, not checked by Slurm\n") == (code == 0)


# `addition` has 10,000 rows.
SUPERVISED = ("data.num_eval=0", "supervised.batch_size=2000", "supervised.num_epochs=1")


@pytest.mark.parametrize(
    ("words", "key", "num_steps"),
    [
        (("exp=demo", "trainer.num_steps=5"), "optim", 5),
        (("exp=demo", "trainer.num_steps=5", "+algorithm=ppo", "critic.warmup_steps=2"), "optim", 3),
        (("exp=demo", "trainer.num_steps=5", "+algorithm=ppo"), "critic.optim", 5),
        (("exp=demo", "warmup.num_steps=5"), "warmup.optim", 5),
        (("exp=sft_tiny", *SUPERVISED), "optim", 5),
        (("exp=rm_tiny", *SUPERVISED), "optim", 5),
        (("exp=dpo_tiny", "supervised.max_steps=5"), "optim", 5),
    ],
)
def test_plan_with_long_warmup_of_lr_warns(
    words: tuple[str, ...], key: str, num_steps: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizers = ("optim", "critic.optim", "warmup.optim") if words[0] == "exp=demo" else ()
    others = [f"{it}.warmup_steps=0" for it in optimizers if it != key]

    def warnings(warmup: int) -> list[str]:
        assert main(["plan", *words, *others, f"{key}.warmup_steps={warmup}"]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]

    [line] = warnings(num_steps)
    assert line.startswith(f"warning: {key}.warmup_steps should be less than the steps of its schedule")
    assert f"got {num_steps} and " in line and f"={num_steps}. Next: lower {key}.warmup_steps" in line
    if words[-1] == "trainer.num_steps=5":
        assert warnings(num_steps - 1) == []
        assert f"only rises, to 1% of {key}.lr; got 500 and trainer.num_steps=5." in warnings(500)[0]
