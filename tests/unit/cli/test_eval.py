"""The verb `eval`: what it submits, of which model, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli import convert
from slurm_rl.cli import eval as verb
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.plan.topology import Demand, place_engines

WORDS = ["+exp=demo", "+eval.sets.sums.data=addition", "data.train=''"]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    found: list[RunConfig] = []
    monkeypatch.setattr(verb, "start_run", lambda config, tell: found.append(config))
    monkeypatch.setattr(verb, "announce_and_follow", lambda started: 0)
    return found


def make_run(folder: Path, *, exported: bool) -> Path:
    (folder / "export").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    if exported:
        (folder / "export/config.json").write_text("{}")
    return folder


def test_it_is_a_run_that_evaluates_alone(submitted: list[RunConfig]) -> None:
    assert main(["eval", *WORDS]) == 0
    assert submitted[0].eval.only and list(submitted[0].eval.sets) == ["sums"]


def test_the_directory_of_a_run_stands_for_what_it_exported(submitted: list[RunConfig], tmp_path: Path) -> None:
    run = make_run(tmp_path / "sft", exported=True)
    assert main(["eval", *WORDS, "model=hf", f"model.path={run}"]) == 0
    assert submitted[0].model.path == f"{run}/export"


def test_a_checkpoint_is_converted_once(
    submitted: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, converted = make_run(tmp_path / "grpo", exported=True), list[list[str]]()

    def note(words: list[str]) -> int:
        converted.append(words)
        (run / "export-step-20").mkdir()
        return 0

    monkeypatch.setattr(convert, "find_checkpoint", lambda folder, step: type("Found", (), {"step": step or 20})())
    monkeypatch.setattr(convert, "run", note)
    for _ in range(2):
        assert main(["eval", *WORDS, "model=hf", f"model.path={run}", "--step", "20"]) == 0
    assert converted == [[str(run), "--step", "20"]]
    assert [one.model.path for one in submitted] == [f"{run}/export-step-20"] * 2


def test_a_step_without_a_run_is_refused(submitted: list[RunConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *WORDS, "--step", "20"]) == 2
    assert "--step is of the run that model.path names" in capsys.readouterr().err and not submitted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+exp=demo"], r"must be given eval\.sets"),
        (["+exp=demo", "~reward.verifiers", "+eval.sets.sums.data=addition"], "must be given a reward"),
    ],
)
def test_an_evaluation_needs_sets_and_a_judge(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([*words, "eval.only=true"])


def test_engines_have_all_gpus_for_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    places = place_engines(Demand(2, 4, None, None, None, None, 2, False))
    assert [(actor.role, actor.node, actor.gpus) for actor in places] == [
        ("rollout", node, gpus) for node in (0, 1) for gpus in ((0, 1), (2, 3))
    ]
    words = ["plan", *WORDS, "eval.only=true", "+cluster=slurm_cpu", "--json"]
    assert main(words) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {actor["role"] for actor in plan["actors"]} == {"rollout"}
    assert main(["explain", *WORDS, "eval.only=true", "+cluster=nvidia_h100"]) == 0
    said = capsys.readouterr().out
    assert "trains nothing" in said and "sums: addition, all rows" in said and "policy" not in said.split("what it")[0]
