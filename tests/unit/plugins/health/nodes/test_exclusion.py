"""Which bad nodes a job is kept off, and what runs of a site tell each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_rl.jsonl import read_rows
from slurm_rl.launchers.slurm.partitions import parse_boot_times, parse_nodes
from slurm_rl.plugins.health.nodes.evidence import Evidence, Strength, find_bad, make_clearing
from slurm_rl.plugins.health.nodes.exclusion import Part, Pool, choose_excluded
from slurm_rl.plugins.health.nodes.site import publish, read_site
from slurm_rl.run_dir import RunDir

_NAMES = [f"n{number}" for number in range(1, 41)]
_ALL = Pool(set(_NAMES), set(_NAMES))


def _bad(*names: str, strength: Strength = "hard", at: float = 1000.0) -> dict[str, Evidence]:
    return {name: Evidence.found(name, "ecc", "seen", strength, attempt=1, now=at) for name in names}


def test_a_share_of_the_partition_is_excluded_and_the_newest_hard_evidence_comes_first() -> None:
    bad = _bad("n1", "n2", "n3") | _bad("n4", at=2000.0) | _bad("n5", "n6", strength="soft", at=3000.0)
    found = choose_excluded(bad, [Part(_ALL, 8)], share=0.1)
    assert found.names == ["n4", "n1", "n2", "n3"]
    assert found.kept["n5"] == "4 of 40 nodes may be excluded (preflight.max_excluded_share)"
    assert choose_excluded(bad, [Part(Pool({"n1", "n2", "n3"}, {"n1", "n2", "n3"}), 1)], share=0.1).names == ["n1"]


def test_unknown_names_are_dropped_and_the_users_are_neither_counted_nor_broken() -> None:
    found = choose_excluded(_bad("gone", "n1"), [Part(_ALL, 8)], share=0.1)
    assert (found.names, found.kept) == (["n1"], {})
    found = choose_excluded(_bad("n1", "n2"), [Part(_ALL, 8)], share=0.1, excluded=["n1"], required=["n2"])
    assert (found.names, found.kept) == ([], {"n2": "cluster.slurm.nodelist asks for it"})


def test_as_many_are_left_as_the_job_needs_of_those_on_which_it_fits() -> None:
    few = Pool(set(_NAMES), set(_NAMES[:9]))
    assert choose_excluded(_bad("n1"), [Part(few, 8)], share=0.1).names == ["n1"]
    assert choose_excluded(_bad("n1"), [Part(few, 8)], share=0.1, excluded=["n2"]).names == []
    # One on which it does not fit is no loss.
    assert choose_excluded(_bad("n30"), [Part(few, 9)], share=0.1).names == ["n30"]


def test_of_a_job_of_several_kinds_each_keeps_as_many_as_it_needs() -> None:
    names = set(_NAMES[:6])
    old, new = Part(Pool(names, {"n1", "n2"}), 1, "old"), Part(Pool(names, {"n3", "n4", "n5"}), 3, "new")
    found = choose_excluded(_bad("n1") | _bad("n3", at=500.0), [old, new], share=0.5)
    assert (found.names, found.kept) == (["n1"], {"n3": "without it 2 nodes are left for the 3 of new"})
    # One that no kind can use is no loss; of kinds that share nodes both are counted.
    assert choose_excluded(_bad("n6"), [old, new], share=0.5).names == ["n6"]
    shared = [Part(Pool(names, names), 3, "a"), Part(Pool(names, names), 3, "b")]
    assert choose_excluded(_bad("n1"), shared, share=0.5).kept == {"n1": "without it 5 nodes are left for a job of 6"}


def test_the_site_learns_of_nodes_from_many_runs_and_of_clearings(tmp_path: Path) -> None:
    site = str(tmp_path / "site")
    rows = [one.to_row() | {"run": "first"} for one in _bad("n1", "n2").values()]
    publish(site, rows, now=1001.0)
    publish(site, [*rows, _bad("n3")["n3"].to_row()], now=1001.0)
    assert sorted(find_bad(read_site(site), 1002.0)) == ["n1", "n2", "n3"]
    publish(site, [make_clearing("n1", 1003.0, "root")], now=1003.0)
    publish(site, rows, now=1004.0)
    assert sorted(find_bad(read_site(site), 1004.0)) == ["n2", "n3"], "told again, it stays cleared"
    assert len(json.loads((tmp_path / "site" / "nodes" / "n1.json").read_text())["rows"]) == 2
    (tmp_path / "site" / "nodes" / "n2.json").write_text("{half")
    assert sorted(find_bad(read_site(site), 1004.0)) == ["n3"]


def test_a_name_that_is_a_path_is_no_file_and_a_folder_that_cannot_be_made_costs_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(str(tmp_path), [{"time": 1.0, "node": "../../x"}, {"time": 1.0, "node": ".."}], now=2.0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    publish(str(tmp_path / "file"), [{"time": 1.0, "node": "n1"}], now=2.0)
    assert "other runs do not learn of n1" in capsys.readouterr().err
    publish(None, [{"time": 1.0, "node": "n1"}])
    assert read_site(None) == []


def test_what_slurm_says_of_nodes() -> None:
    nodes = parse_nodes(
        "n1|idle|4|1|gpu:2|a\nn2|mixed*|4|1|gpu:2|a\nn3|drained|4|1|gpu:2|a\nn4|allocated|4|1|(null)|b\n"
    )
    assert {name: node.is_in_service for name, node in nodes.items()} == {
        "n1": True,
        "n2": False,
        "n3": False,
        "n4": True,
    }
    assert (nodes["n4"].size, nodes["n4"].features) == ("4|1|(null)", "b")
    shown = (
        "NodeName=n1 Arch=x\n   BootTime=2026-11-22T08:57:21 SlurmdStartTime=x\n\nNodeName=n2 Arch=x\n   State=DOWN\n"
    )
    shown += "   BootTime=None\n\nNodeName=n3 x\n   BootTime=2026-11-22T08:57:22\n"
    found = parse_boot_times(shown)
    assert sorted(found) == ["n1", "n3"]
    assert found["n3"] - found["n1"] == 1.0
    sample = Path(__file__).parents[4] / "samples" / "scontrol-show-node.h100-23.11.txt"
    assert parse_boot_times(sample.read_text(encoding="utf-8")) == {}


def test_the_verb_of_an_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from slurm_rl.__main__ import main

    site, where = str(tmp_path), ["--site-dir", str(tmp_path)]
    assert main(["nodes", *where]) == 0
    assert "no bad nodes" in capsys.readouterr().err
    assert main(["nodes", "add", "n1", "n2", "--why", "fan broken", *where]) == 0
    assert main(["nodes", "list", *where]) == 0
    assert "n1  operator: fan broken" in capsys.readouterr().out
    assert main(["nodes", "clear", "n1", *where]) == 0
    assert list(find_bad(read_site(site), 0.0)) == ["n2"]
    capsys.readouterr()
    assert main(["nodes", "--json", *where]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["n2"]
    wrong = (["list", "n1"], ["clear"], ["add", "n3"], ["forget", "n1"], ["add", "--why", "x"])
    assert [main(["nodes", *words, *where]) for words in wrong] == [2] * 5
    assert list(find_bad(read_site(site), 0.0)) == ["n2"]


def test_the_verb_also_writes_into_the_run_that_is_named(tmp_path: Path) -> None:
    from slurm_rl.__main__ import main
    from slurm_rl.config.load import load_config
    from slurm_rl.job.create import create_run
    from slurm_rl.plan.job import SubmitFacts, build_plan

    run = RunDir(tmp_path / "run")
    config = load_config(["+exp=demo", f"cluster.site_dir={tmp_path / 'site'}"])
    create_run(run, config, build_plan(config, str(run.path), SubmitFacts("python", 2, "test")))
    assert main(["nodes", "add", "n1", "--why", "slow", "--run", str(run.path)]) == 0
    for rows in (read_rows(run.nodes), read_site(str(tmp_path / "site"))):
        assert list(find_bad(rows, 0.0)) == ["n1"]
