"""Nodes that are cleaned after an attempt: those whose agent did not end, and of these no srun names a lost one."""

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm import srun
from slurm_rl.node.cleaning import DONE
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, write_json

HOSTS = ["a1", "a2", "a3"]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Argument lists of the sruns; the nodes that one names answer."""
    found: list[list[str]] = []

    def run_srun(argv: list[str], env: object, deadline_s: float) -> tuple[str, str]:
        found.append(argv)
        [named] = [word for word in argv if word.startswith("--nodelist=")]
        return "".join(f"{DONE}{host}\n" for host in named.partition("=")[2].split(",")), ""

    monkeypatch.setattr(srun, "run_srun", run_srun)
    monkeypatch.setattr(srun, "find_unreachable", lambda hosts, within_s: [])
    return found


def clean(folder: Path, ended: list[int]) -> tuple[list[str], RunDir]:
    run = RunDir(folder / "run")
    plan = build_plan(load_config(["+exp=demo", "+cluster=slurm_cpu"]), str(run.path), SubmitFacts("/python", 4, "1"))
    attempt: AttemptDir = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    for rank in ended:
        write_json(attempt.node(rank), {"host": HOSTS[rank], "rank": rank, "state": "ended"})
    return srun.clean_nodes(run, plan, attempt, HOSTS, "7", {}), run


def test_a_lost_node_is_not_named_so_that_the_others_are_cleaned(
    tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Slurm 23.02 an srun that names a node which is down starts nowhere, and the good node was blamed."""
    monkeypatch.setattr(srun, "nodes_down", lambda: {"a3"})
    silent, run = clean(tmp_path, ended=[0])
    assert silent == ["a3"]
    assert [word for word in asked[0] if word.startswith("--nodelist=")] == ["--nodelist=a2"]
    assert read_rows(run.events)[-1]["hosts"] == ["a2", "a3"]


def test_a_node_that_does_not_answer_is_not_waited_for_by_srun(
    tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has not missed it yet, and an srun that names it would wait for half a minute."""
    monkeypatch.setattr(srun, "nodes_down", list)
    monkeypatch.setattr(srun, "find_unreachable", lambda hosts, within_s: ["a2"])
    silent, _ = clean(tmp_path, ended=[0])
    assert silent == ["a2"]
    assert [word for word in asked[0] if word.startswith("--nodelist=")] == ["--nodelist=a3"]


def test_where_all_are_down_no_srun_is_tried(
    tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(srun, "nodes_down", lambda: set(HOSTS))
    silent, _ = clean(tmp_path, ended=[0, 1])
    assert (silent, asked) == (["a3"], [])


def test_where_slurm_does_not_say_who_is_down_all_are_asked(
    tmp_path: Path, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> set[str]:
        raise SlurmRLError("Slurm must answer")

    monkeypatch.setattr(srun, "nodes_down", refuse)
    assert clean(tmp_path, ended=[])[0] == []
    assert [word for word in asked[0] if word.startswith("--nodelist=")] == ["--nodelist=a1,a2,a3"]
