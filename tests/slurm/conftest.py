"""Fixtures that start a real Slurm cluster on this machine.

Where that is impossible, tests are skipped with the reason; with SLURM_RL_REQUIRE_SLURM=1 they fail instead, so that a
machine that should run them cannot pass by skipping.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.machines.kit import Machines, machines_up
from tests.ray_kit import OthersCluster, ray_up
from tests.slurm.cluster import Cluster, ClusterError, ensure_packages, is_possible, is_required, reset
from tests.slurm.launched import VERSION, Launched, OnLocal, OnMachines, OnRay, OnSlurm

NO_SLURM = "no test Slurm here: "


@pytest.fixture(scope="session")
def only_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Cluster of 4 nodes without accounting; for fixtures that only some tests combine with a cluster."""
    yield from _clusters(request, num_nodes=4, accounting=False)


@pytest.fixture(scope="session", params=[VERSION])
def session_cluster(only_cluster: Cluster) -> Cluster:
    """Session-wide cluster for fixtures of a wide scope; tests request `cluster`."""
    return only_cluster


@pytest.fixture(scope="session", params=[VERSION])
def session_accounting_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Cluster of 2 nodes with slurmdbd."""
    yield from _clusters(request, num_nodes=2, accounting=True)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster; cancel its jobs and restore its nodes afterwards."""
    yield session_cluster
    reset(session_cluster)


@pytest.fixture
def accounting_cluster(session_accounting_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster with accounting, reset afterwards."""
    yield session_accounting_cluster
    reset(session_accounting_cluster)


@pytest.fixture
def shared_dir(session_cluster: Cluster) -> Path:
    """Folder that every node sees; pytest's tmp_path is in /tmp, which is private to each node."""
    return make_shared_dir(session_cluster)


@pytest.fixture(scope="session")
def session_machines() -> Iterator[Machines]:
    with machines_up() as machines:
        yield machines


@pytest.fixture(scope="session")
def session_ray() -> Iterator[OthersCluster]:
    with ray_up() as cluster:
        yield cluster


@pytest.fixture
def launched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launched]:
    """A run, not started yet, for the launcher in the test's parameter `launcher`."""
    name, get_fixture = request.node.callspec.params["launcher"], request.getfixturevalue

    def on_slurm() -> Launched:
        cluster = get_fixture("only_cluster")
        request.addfinalizer(lambda: reset(cluster))
        return OnSlurm(make_shared_dir(cluster), cluster)

    def on_machines() -> Launched:
        machines: Machines = get_fixture("session_machines")
        return OnMachines(Path(tempfile.mkdtemp(dir=machines.shared)), machines)

    make: dict[str, Callable[[], Launched]] = {
        "slurm": on_slurm,
        "local": lambda: OnLocal(tmp_path),
        "manual": on_machines,
        "ray": lambda: OnRay(tmp_path, get_fixture("session_ray")),
    }
    run = make[name]()
    yield run
    run.stop_all()


def make_shared_dir(cluster: Cluster) -> Path:
    """Make a folder that every node of `cluster` sees."""
    return Path(tempfile.mkdtemp(prefix="w", dir=cluster.root))


def _clusters(request: pytest.FixtureRequest, *, num_nodes: int, accounting: bool) -> Iterator[Cluster]:
    if reason := is_possible():
        _give_up(reason)
    try:
        ensure_packages(accounting=accounting)
    except ClusterError as error:
        _give_up(str(error))
    # Short, because Unix sockets are created below; in /tmp, because every user may traverse it.
    root = Path(tempfile.mkdtemp(prefix="slrl-", dir="/tmp"))
    # Each node has a private /tmp; the checkout and its environment may be below ours.
    shared = [Path(__file__).parents[2], Path(sys.prefix)]
    cluster = Cluster(root, num_nodes=num_nodes, accounting=accounting, shared=shared)
    cluster.up()
    failed_before = request.session.testsfailed
    yield cluster
    cluster.down()
    if request.session.testsfailed == failed_before:
        shutil.rmtree(root)
    else:
        print(f"the test cluster's logs and shared folders are kept in {root}")


def _give_up(reason: str) -> None:
    if is_required():
        pytest.fail(reason)
    pytest.skip(f"{NO_SLURM}{reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report all skips for a missing Slurm at one line of this file, so that the summary shows them once."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NO_SLURM in report.longrepr[2]:
        report.longrepr = (__file__, _give_up.__code__.co_firstlineno, report.longrepr[2])
    return report
