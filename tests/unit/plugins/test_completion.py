import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.launch.runs.find import remember
from slurm_rl.plugins.completion.command import complete
from slurm_rl.run_dir.run_dir import write_json

LOADED = """
import sys
from slurm_rl.__main__ import main
main(sys.argv[1:])
ours = [name for name in sys.modules if name.partition(".")[0] == "slurm_rl"]
print(len(ours), *sorted({"pydantic", "hydra", "omegaconf", "submitit", "rich", "torch"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stat", ["status"]),
        ("plan --f", ["--full"]),
        ("logs --who dr", []),
        ("plan --as ", ["dstack", "xpk"]),
        ("plan +clu", ["+cluster="]),
        ("+cluster=nvidia_h", ["+cluster=nvidia_h100", "+cluster=nvidia_h200"]),
        ("plan cluster=nvidia_h1", ["cluster=nvidia_h100"]),
        ("plan +exp=demo opti", ["optim."]),
        ("plan optim.sch", ["optim.schedule="]),
        ("plan algorithm.kl.a", ["algorithm.kl.apply_to="]),
        ("plan optim.schedule=co", ["optim.schedule=constant", "optim.schedule=cosine"]),
        ("image bu", ["build"]),
        ("status nothing", []),
    ],
)
def test_complete_returns_matching_words(line: str, expected: list[str]) -> None:
    typed = line.split() + ([""] if line.endswith(" ") else [])
    assert complete(typed) == expected


def test_complete_lists_runs_and_presets_of_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shared/sums-1", "runs/sums-2"):
        write_json(tmp_path / name / "plan.json", {})
    remember(tmp_path / "shared/sums-1", ["4711"])
    assert complete(["logs", ""]) == ["4711", "runs/sums-2", "sums-1"]
    assert complete(["logs", "runs/"]) == ["runs/sums-2"]
    Path("conf/exp").mkdir(parents=True)
    Path("conf/exp/mine.yaml").write_text("# @package _global_\n")
    assert complete(["plan", "+exp=mi"]) == ["+exp=mine"]


def test_bash_completes_command_lines(tmp_path: Path) -> None:
    program = tmp_path / "slurm-rl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m slurm_rl "$@"\n')
    program.chmod(0o755)
    script = f"""
    eval "$({program} completion)"
    complete -p slurm-rl
    try() {{ COMP_LINE=$1; COMP_POINT=${{#1}}; _slurm_rl {program} "$2" x; echo "${{COMPREPLY[@]}}"; }}
    try "slurm-rl samp" samp
    try "slurm-rl plan +cluster=nvidia_h" nvidia_h
    try "slurm-rl plan --f" --f
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "complete -o default -F _slurm_rl slurm-rl",
        "samples",
        "nvidia_h100 nvidia_h200",
        "--full",
    ]


@pytest.mark.parametrize("line", ["slurm-rl ", "slurm-rl plan +exp=", "slurm-rl plan optim.", "slurm-rl status "])
def test_completion_imports_no_heavy_package(line: str) -> None:
    """A count of modules stands for seconds: 40 of ours take about 0.1 s of CPU."""
    words = [sys.executable, "-c", LOADED, "completion", f"--line={line}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    number, *heavy = done.stdout.splitlines()[-1].split()
    assert int(number) <= 40 and heavy == []
