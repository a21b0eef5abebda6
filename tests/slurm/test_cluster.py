"""The test cluster does what a real one does; every other test here leans on that."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slurm


def test_nodes_have_their_own_name_and_address(cluster: Cluster) -> None:
    done = cluster.run(["srun", "-N2", "sh", "-c", "echo $(hostname) $(hostname -I)"])
    assert done.stderr == ""
    assert sorted(done.stdout.split("\n"))[1:] == [f"{node} {cluster.ip(node)}" for node in cluster.nodes[:2]]
