"""Ranks follow Slurm's switches and blocks, and a run gets its nodes from the requested ones."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_rl.run_dir.run_dir import read_json
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import make_shared_dir
from tests.slurm.launched import VERSION
from tests.slurm.light_python import make_light_python
from tests.slurm.submitting import cli, finish, submit, wait_for_step

pytestmark = pytest.mark.slurm


class TopologyCluster(Cluster):
    """Cluster with a topology in which neighbours are every second node, unlike in any order by name."""

    lines = ""

    def _build(self) -> None:
        a, b, c, d = self.nodes
        (self.root / "topology.conf").write_text(self.lines.format(first=f"{a},{c}", second=f"{b},{d}"))
        super()._build()


@contextmanager
def topology_cluster(plugin: str, lines: str) -> Iterator[tuple[Cluster, Path]]:
    """Yield the cluster and a folder that its nodes see."""
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    shared = [Path(__file__).parents[2], Path(sys.prefix)]
    cluster = TopologyCluster(root, num_nodes=4, shared=shared, settings={"TopologyPlugin": plugin})
    cluster.lines = lines
    with cluster:
        yield cluster, make_shared_dir(cluster)
    shutil.rmtree(root)


def run_on(cluster: Cluster, folder: Path, *words: str) -> list[str]:
    """Run to the end; return the hosts by rank."""
    submit(cluster, folder, make_light_python(folder.parent), *words)
    wait_for_step(folder)
    num_nodes = read_json(folder / "plan.json")["num_nodes"]
    hosts = [read_json(folder / "attempts" / "1" / f"node-{rank}.json")["host"] for rank in range(num_nodes)]
    finish(folder)
    return hosts


@pytest.mark.usefixtures("session_cluster")
def test_ranks_follow_switches_and_run_stays_under_one() -> None:
    lines = "SwitchName=s1 Nodes={first}\nSwitchName=s2 Nodes={second}\nSwitchName=top Switches=s[1-2]\n"
    with topology_cluster("topology/tree", lines) as (cluster, folder):
        a, b, c, d = cluster.nodes
        assert run_on(cluster, folder / "all", "cluster.num_nodes=4") == [a, c, b, d]
        # Slurm waits up to a day for one switch rather than take two.
        words = ["cluster.num_nodes=2", "cluster.topology.switches=1@1-00"]
        assert set(run_on(cluster, folder / "two", *words)) in ({a, c}, {b, d})


@pytest.mark.versions
def test_ranks_follow_blocks_and_segments_stay_within_one(cluster: Cluster, shared_dir: Path) -> None:
    words = ["cluster.num_nodes=4", "cluster.topology.segment=2"]
    if VERSION.startswith("slurm-22"):
        # This Slurm's plugins predate blocks.
        refused = cli(cluster, shared_dir, "+exp=demo", "+cluster=slurm_cpu", f"run_dir={shared_dir}/run", *words)
        assert refused.returncode == 2 and "segment" in refused.stderr, refused.stderr
        return
    lines = "BlockName=b1 Nodes={first}\nBlockName=b2 Nodes={second}\nBlockSizes=2\n"
    with topology_cluster("topology/block", lines) as (cluster, folder):
        a, b, c, d = cluster.nodes
        hosts = run_on(cluster, folder / "all", *words)
        assert [set(hosts[:2]), set(hosts[2:])] in ([{a, c}, {b, d}], [{b, d}, {a, c}])
        pair = run_on(cluster, folder / "two", "cluster.num_nodes=2", "cluster.topology.segment=2")
        assert set(pair) in ({a, c}, {b, d})
