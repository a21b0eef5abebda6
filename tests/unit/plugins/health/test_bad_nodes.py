"""Bad nodes of a job of several kinds: what it is submitted with, and what Slurm is told at a requeue."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.jsonl import read_rows
from slurm_rl.launchers.slurm.partitions import parse_nodes
from slurm_rl.plan.job import JobPlan, SubmitFacts, build_plan
from slurm_rl.plugins.health import memory
from slurm_rl.plugins.health.memory import NodeMemory, avoid_bad_nodes
from slurm_rl.plugins.health.nodes.evidence import Evidence, note_evidence
from slurm_rl.run_dir import RunDir

# Two nodes of the old kind and two of the new one in a partition, as sinfo tells of them.
NODES = parse_nodes(
    "".join(f"{name}|idle|4|1|gpu:{gpu}:2|{gpu},ib\n" for name, gpu in zip("abcd", "oonn", strict=True))
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(memory, "list_nodes", lambda partition: NODES)
    monkeypatch.setattr(memory, "boot_times", lambda hosts: {})
    monkeypatch.setattr(memory, "hostnames", lambda said: said.split(","))
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


def plan_of(run: RunDir, num_old: int, *words: str) -> JobPlan:
    kinds = [f"+cluster.nodes.o.count={num_old}", "+cluster.nodes.n.count=1", f"cluster.num_nodes={num_old + 1}"]
    config = load_config(["+exp=demo", "+cluster=slurm_cpu", "policy.node_feature=n", *kinds, *words])
    return build_plan(config, str(run.path), SubmitFacts("python", 2, "test"))


def find_bad(run: RunDir, node: str) -> None:
    note_evidence(run, Evidence.found(node, "ecc", "a row", "hard", attempt=1))


def test_each_component_is_submitted_without_the_bad_node(run: RunDir) -> None:
    find_bad(run, "a")
    plan, found = avoid_bad_nodes(run, plan_of(run, 1, "cluster.slurm.exclude=x9"))
    assert found.names == ["a"]
    assert [options["exclude"] for options in (plan.sbatch, *plan.het)] == ["x9,a", "x9,a"]


def test_a_kind_that_needs_all_of_its_nodes_keeps_them(run: RunDir) -> None:
    find_bad(run, "a")
    plan, found = avoid_bad_nodes(run, plan_of(run, 2))
    assert found.kept == {"a": "without it 1 node is left for the 2 of o"}
    assert not any("exclude" in options for options in (plan.sbatch, *plan.het))


def test_at_a_requeue_the_whole_job_is_told_once_by_its_first_component(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_bad(run, "b")
    lists: dict[str, list[str]] = {"7": ["x9"]}
    monkeypatch.setattr(memory, "excluded_nodes", lambda job: lists[job])
    monkeypatch.setattr(memory, "exclude_nodes", lambda job, names, within_s: lists.update({job: list(names)}))
    known = NodeMemory(run, plan_of(run, 1, "cluster.slurm.exclude=x9"))
    for _ in range(2):
        known.tell_slurm("7", known.choose(["c", "b"]), 1.0)
    assert lists == {"7": ["b", "x9"]}
    assert [row["nodes"] for row in read_rows(run.events) if row["kind"] == "nodes/excluded"] == [["b"]]


def test_at_a_requeue_what_is_left_is_counted_by_kind(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the nodes that the job has, in the order of its kinds: the policy's is the first."""
    for node in "cb":
        find_bad(run, node)
    monkeypatch.setattr(memory, "excluded_nodes", lambda job: [])
    monkeypatch.setattr(memory, "exclude_nodes", lambda *_: None)
    known = NodeMemory(run, plan_of(run, 2, "preflight.max_excluded_share=0.5"))
    found = known.choose(["c", "a", "b"])
    assert (found.names, found.kept) == (["c"], {"b": "without it 1 node is left for the 2 of o"})
    known.tell_slurm("7", found, 1.0)
    told = [row["kind"] for row in read_rows(run.events) if row["kind"].startswith("nodes/")]
    assert told == ["nodes/kept", "nodes/excluded"]
