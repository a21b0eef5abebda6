from pathlib import Path

import pytest

from slurm_rl.launch.slurm import exclude
from slurm_rl.launch.slurm.exclude import exclude_at_requeue, exclude_at_submit
from slurm_rl.launch.slurm.partitions import parse_nodes
from slurm_rl.plan.job import JobPlan
from slurm_rl.plugins.health import memory
from slurm_rl.plugins.health.evidence import Evidence, note_evidence
from slurm_rl.plugins.health.memory import HealthChecks
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.run_dir import RunDir
from tests.plans import plan_of

# A partition with two nodes of an old and two of a new kind.
NODES = parse_nodes(
    "".join(f"{name}|idle|4|1|gpu:{gpu}:2|{gpu},ib\n" for name, gpu in zip("abcd", "oonn", strict=True))
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(memory, "list_nodes", lambda partition: NODES)
    monkeypatch.setattr(memory, "boot_times", lambda hosts: {})
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


def make_plan(run: RunDir, num_old: int, *words: str) -> JobPlan:
    kinds = [f"+cluster.nodes.o.count={num_old}", "+cluster.nodes.n.count=1", f"cluster.num_nodes={num_old + 1}"]
    return plan_of("+cluster=slurm_cpu", "policy.node_group=n", *kinds, *words, run_dir=run.path)


def note_bad(run: RunDir, *nodes: str) -> None:
    for node in nodes:
        note_evidence(run, Evidence.new(node, "ecc", "a row", "hard", attempt=1))


def test_exclude_at_submit_covers_components_but_keeps_last_nodes(run: RunDir) -> None:
    note_bad(run, "a")
    plan, found = exclude_at_submit(run, make_plan(run, 1, "cluster.slurm.exclude=x9"))
    assert found.names == ["a"]
    assert [options["exclude"] for options in (plan.sbatch, *plan.het)] == ["x9,a", "x9,a"]
    plan, found = exclude_at_submit(run, make_plan(run, 2))
    assert found.skipped == {"a": "without it 1 node is left for the 2 of o"}
    assert not any("exclude" in options for options in (plan.sbatch, *plan.het))


def test_exclude_at_requeue_updates_slurm_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    note_bad(run, "b")
    lists: dict[str, list[str]] = {"7": ["x9"]}
    monkeypatch.setattr(exclude, "excluded_nodes", lambda job: lists[job])
    monkeypatch.setattr(exclude, "exclude_nodes", lambda job, names, within_s: lists.update({job: list(names)}))
    plan = make_plan(run, 1, "cluster.slurm.exclude=x9")
    for _ in range(2):
        exclude_at_requeue(run, plan, "7", HealthChecks(run, plan).exclusion(["c", "b"]), 1.0)
    assert lists == {"7": ["b", "x9"]}
    assert [row["nodes"] for row in read_rows(run.events) if row["kind"] == "nodes/excluded"] == [["b"]]


def test_exclude_at_requeue_counts_nodes_like_those_of_job(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are ordered by kind; the first kind is the policy's."""
    note_bad(run, "c", "b")
    monkeypatch.setattr(exclude, "excluded_nodes", lambda job: [])
    monkeypatch.setattr(exclude, "exclude_nodes", lambda *_: None)
    plan = make_plan(run, 2, "preflight.max_excluded_share=0.5")
    found = HealthChecks(run, plan).exclusion(["c", "a", "b"])
    assert (found.names, found.skipped) == (["c"], {"b": "without it 1 node is left for the 2 of o"})
    exclude_at_requeue(run, plan, "7", found, 1.0)
    kinds = [row["kind"] for row in read_rows(run.events) if row["kind"].startswith("nodes/")]
    assert kinds == ["nodes/exclusion_skipped", "nodes/excluded"]
