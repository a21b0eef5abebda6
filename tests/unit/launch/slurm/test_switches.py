import itertools
import random
from pathlib import Path

import pytest

from slurm_rl.launch.slurm.hosts import order_by_topology, parse_topology

SAMPLE = Path(__file__).parents[3] / "samples" / "scontrol-show-topology.txt"


def samples() -> dict[str, str]:
    """Return recorded outputs of Slurm by their first comment."""
    found: dict[str, str] = {}
    title = ""
    for line in SAMPLE.read_text().splitlines():
        if line.startswith("#"):
            title, found[line] = line, ""
        else:
            found[title] += line + "\n"
    return found


def sample(words: str) -> str:
    return next(text for title, text in samples().items() if words in title)


def test_tree_has_leaves_and_parents() -> None:
    topology = parse_topology(sample("topology/tree"))
    assert topology["n1"] == ("top", "s1") and topology["n8"] == ("top", "s2") and len(topology) == 8


def test_blocks_have_aggregated_parents() -> None:
    topology = parse_topology(sample("topology/block"))
    assert topology["n3"] == ("b[1-2]", "b2")
    ips = parse_topology(sample("GB300"))
    assert ips["10.140.88.115"][-1] == "gb300_b0" and len(ips) == 4


def test_missing_topology_keeps_order() -> None:
    assert parse_topology(sample("no topology plugin")) == {}
    assert order_by_topology(["n3", "n1"], {}) == ["n3", "n1"]


@pytest.mark.parametrize("words", ["topology/tree", "topology/block", "GB300"])
def test_neighbours_are_adjacent_at_every_level(words: str) -> None:
    topology, order = parse_topology(sample(words)), random.Random(1)
    for _ in range(50):
        hosts = order.sample(sorted(topology), k=len(topology))
        chosen = order_by_topology(hosts, topology)
        assert sorted(chosen) == sorted(hosts)
        for level in range(max(len(path) for path in topology.values())):
            seen = [topology[host][: level + 1] for host in chosen]
            runs = 1 + sum(one != other for one, other in itertools.pairwise(seen))
            assert runs == len(set(seen)), (chosen, level)


def test_spare_nodes_have_fewest_neighbours() -> None:
    """Six nodes fit and four are needed: two whole blocks of one half, without the block that lost a node."""
    topology = parse_topology(sample("topology/block"))
    fit = ["n1", "n3", "n4", "n5", "n6", "n7", "n8"]
    assert order_by_topology(fit, topology)[:4] == ["n5", "n6", "n7", "n8"]
    assert order_by_topology(fit, topology)[4:] == ["n3", "n4", "n1"]


def test_nodes_outside_topology_keep_order() -> None:
    topology = {"n1": ("s1",), "n3": ("s1",)}
    assert set(order_by_topology(["n1", "cloud", "n3"], topology)[:2]) <= {"n1", "n3", "cloud"}
    ordered = order_by_topology(["n1", "cloud", "n3"], topology)
    assert abs(ordered.index("n1") - ordered.index("n3")) == 1
