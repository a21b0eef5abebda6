import itertools
import random
import re
from pathlib import Path

import pytest

from slurm_rl.launch.slurm.hosts import order_by_topology, parse_topology

SAMPLE = Path(__file__).parents[3] / "samples" / "scontrol-show-topology.txt"


def sample(words: str) -> str:
    """Return the recorded output of Slurm with these words in its first line, a comment."""
    parts = re.split(r"^(?=#)", SAMPLE.read_text(), flags=re.MULTILINE)
    return next(part.partition("\n")[2] for part in parts if words in part.partition("\n")[0])


def test_parse_topology_reads_trees_and_blocks() -> None:
    topology = parse_topology(sample("topology/tree"))
    assert topology["n1"] == ("top", "s1") and topology["n8"] == ("top", "s2") and len(topology) == 8
    assert parse_topology(sample("topology/block"))["n3"] == ("b[1-2]", "b2")
    ips = parse_topology(sample("GB300"))
    assert ips["10.140.88.115"][-1] == "gb300_b0" and len(ips) == 4
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


def test_nodes_outside_topology_separate_no_neighbours() -> None:
    ordered = order_by_topology(["n1", "cloud", "n3"], {"n1": ("s1",), "n3": ("s1",)})
    assert set(ordered) == {"n1", "n3", "cloud"}
    assert abs(ordered.index("n1") - ordered.index("n3")) == 1
