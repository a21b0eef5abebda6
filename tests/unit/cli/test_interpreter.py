import sys
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.interpreter import check_interpreter, find_activated
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.job import JobPlan

LACK = "the job's Python lacks ray, transformers, vllm"


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """Return a Python that has only torch."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\nshift 2\nfor name in "$@"; do [ $name = torch ] || echo $name; done\n')
    path.chmod(0o755)
    return path


def plan_of(*words: str, python: str = sys.executable) -> JobPlan:
    return build_plan(load_config(["+exp=demo", "+cluster=slurm_cpu", *words]), "/runs/a", SubmitFacts(python, 2, "0"))


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ([], "ray, transformers, vllm"),
        (["+exp=sft_tiny"], "transformers"),
        (["+exp=command", "external.argv=[train]"], "ray"),
    ],
)
def test_check_interpreter_refuses_missing_requirement(light: Path, words: list[str], lacks: str) -> None:
    task = words or ["+exp=demo"]
    config = load_config([*task, "+cluster=slurm_cpu", f"cluster.python={light}"])
    plan = build_plan(config, "/runs/a", SubmitFacts(sys.executable, 2, "0"))
    with pytest.raises(ConfigError, match=rf"lacks {lacks}; got {light}.*slurm_rl\[cpu\]"):
        check_interpreter(plan, print)


def test_check_interpreter_warns_where_setup_may_provide_it(light: Path) -> None:
    told: list[str] = []
    check_interpreter(plan_of(f"cluster.python={light}", "cluster.setup=[module load ray]"), told.append)
    assert LACK in told[0] and "cluster.setup" in told[0]


@pytest.mark.parametrize(
    "words",
    [
        [f"cluster.python={sys.executable}"],
        ["cluster.python=/nowhere/bin/python"],
        ["cluster.python=python3"],
        ["container.runtime=apptainer", "container.image=/i.sif", "cluster.python=/bin/false"],
    ],
)
def test_check_interpreter_skips_unrunnable_python(words: list[str]) -> None:
    told: list[str] = []
    check_interpreter(plan_of(*words), told.append)
    assert told == []


def test_plan_warns_and_submit_refuses(
    light: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(light.parent)
    words = ["+exp=demo", f"cluster.python={light}", "run_dir=x"]
    assert main(["plan", *words]) == 0
    assert f"warning: submit will refuse this: {LACK}" in capsys.readouterr().err
    assert main(["submit", *words]) == 2
    assert LACK in capsys.readouterr().err and not (light.parent / "x").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("source /shared/venv/bin/activate", "set cluster.python=/shared/venv/bin/python"),
        ("module load gcc && . /v/bin/activate", "set cluster.python=/v/bin/python"),
        ("conda activate rl", "set cluster.python to the Python of that environment"),
        (f"source {sys.prefix}/bin/activate", None),
        ("module load cuda", None),
    ],
)
def test_find_activated_names_key_of_another_environment(line: str, says: str | None) -> None:
    assert find_activated((line,)) == says


def test_check_interpreter_warns_that_setup_keeps_python() -> None:
    told: list[str] = []
    setup = "cluster.setup=['source /shared/venv/bin/activate']"
    check_interpreter(plan_of(setup), told.append)
    assert "the run uses" in told[0] and "cluster.python=/shared/venv/bin/python" in told[0]
    told.clear()
    check_interpreter(plan_of(setup, "cluster.python=/shared/venv/bin/python"), told.append)
    assert told == []
