"""Cleanup after an attempt covers nodes with a running agent; no srun may name a lost node."""

from collections.abc import Callable
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
    """Return the argument lists of all sruns; each named node answers."""
    found: list[list[str]] = []

    def run_srun(argv: list[str], env: object, deadline_s: float) -> tuple[str, str]:
        found.append(argv)
        [named] = [word for word in argv if word.startswith("--nodelist=")]
        return "".join(f"{DONE}{host}\n" for host in named.partition("=")[2].split(",")), ""

    monkeypatch.setattr(srun, "run_srun", run_srun)
    return found


def clean(folder: Path, ended: list[int]) -> tuple[list[str], RunDir]:
    run = RunDir(folder / "run")
    plan = build_plan(load_config(["+exp=demo", "+cluster=slurm_cpu"]), str(run.path), SubmitFacts("/python", 4, "1"))
    attempt: AttemptDir = run.attempt(1)
    attempt.logs.mkdir(parents=True)
    for rank in ended:
        write_json(attempt.node(rank), {"host": HOSTS[rank], "rank": rank, "state": "ended"})
    return srun.clean_nodes(run, plan, attempt, HOSTS, "7", {}), run


def refuse() -> set[str]:
    raise SlurmRLError("Slurm must answer")


@pytest.mark.parametrize(
    ("down", "unreachable", "ended", "silent", "named"),
    [
        # Since Slurm 23.02, an srun that names a node that is down starts nowhere.
        (lambda: {"a3"}, [], [0], ["a3"], "a2"),
        # Slurm has not noticed the loss yet; an srun that names the node would wait for half a minute.
        (set, ["a2"], [0], ["a2"], "a3"),
        (lambda: set(HOSTS), [], [0, 1], ["a3"], None),
        (refuse, [], [], [], "a1,a2,a3"),
    ],
)
def test_clean_nodes_names_only_responding_nodes(
    tmp_path: Path,
    asked: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    down: Callable[[], set[str]],
    unreachable: list[str],
    ended: list[int],
    silent: list[str],
    named: str | None,
) -> None:
    monkeypatch.setattr(srun, "nodes_down", down)
    monkeypatch.setattr(srun, "find_unreachable", lambda hosts, within_s: unreachable)
    found, run = clean(tmp_path, ended)
    assert found == silent
    lists = [word for argv in asked for word in argv if word.startswith("--nodelist=")]
    assert lists == ([f"--nodelist={named}"] if named else [])
    assert read_rows(run.events)[-1]["hosts"] == [host for rank, host in enumerate(HOSTS) if rank not in ended]
