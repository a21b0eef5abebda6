import itertools

import pytest

from slurm_rl.errors import BringUpError, ConfigError
from slurm_rl.node.rank_discovery import SOURCES, Flags, NodeIdentity, NodeRole, discover, discover_role
from slurm_rl.node.rendezvous import own_address

SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[4-6]"}
DSTACK = {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.4"}
DSTACK |= {"DSTACK_NODES_IPS": "10.0.0.4\n10.0.0.5"}
RUNPOD = {"RAY_WORKER": "1", "HEAD_POD_ID": "abc123", "RUNPOD_POD_ID": "def456"}
GCP = {"GCP_WORKER": "1", "GCP_HEAD_IP": "10.128.0.2"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "trainer-0", "MASTER_PORT": "23456"}
IN_ORDER = {"Slurm": SLURM, "dstack": DSTACK, "RunPod": RUNPOD, "GCP": GCP, "torchrun": TORCHRUN}


HOSTS = ("10.0.0.4", "10.0.0.5")
RUNPOD_HEAD = {"HEAD_POD_ID": "abc123", "EXPECTED_WORKERS": "2", "DEBUG_RAY": "1"}


@pytest.mark.parametrize(
    ("env", "identity"),
    [
        (SLURM, NodeIdentity("Slurm", 1, 3, "gpu4", job_key="77")),
        (DSTACK, NodeIdentity("dstack", 1, 2, "10.0.0.4", hosts=HOSTS, name="10.0.0.5")),
        (RUNPOD, NodeIdentity("RunPod", None, None, "abc123.runpod.internal", name="def456")),
        (RUNPOD_HEAD, NodeIdentity("RunPod", 0, 3, "abc123.runpod.internal", wants_debugger=True)),
        (GCP, NodeIdentity("GCP", None, None, "10.128.0.2")),
        ({"EXPECTED_WORKERS": "1"}, NodeIdentity("GCP", 0, 2)),
        (TORCHRUN, NodeIdentity("torchrun", 1, 4, "trainer-0", 23456)),
    ],
)
def test_discover_reads_each_source(env: dict[str, str], identity: NodeIdentity) -> None:
    assert discover(env, Flags()) == identity


def test_discover_prefers_first_source() -> None:
    for first, second in itertools.combinations(IN_ORDER, 2):
        if (first, second) != ("RunPod", "GCP"):  # they contradict each other
            assert discover(IN_ORDER[second] | IN_ORDER[first], Flags()).source == first


def test_discover_prefers_flags() -> None:
    everything = SLURM | DSTACK | TORCHRUN
    assert discover(everything, Flags(rank=2, num_nodes=5, head="h")) == NodeIdentity("flags", 2, 5, "h")
    assert discover(everything, Flags(head="h")) == NodeIdentity("flags", None, None, "h")
    assert len(SOURCES) == len(IN_ORDER) + 1
    found = discover(RUNPOD, Flags(num_nodes=4, port=7000))
    assert (found.source, found.rank, found.num_nodes, found.port) == ("RunPod", None, 4, 7000)
    for flags in (Flags(rank=2, num_nodes=2), Flags(rank=-1)):
        with pytest.raises(ConfigError, match="--rank must be 0"):
            discover({}, flags)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({}, "RAY_WORKER"),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, "SLURM_NTASKS"),
        (SLURM | {"SLURM_LOCALID": "1"}, "SLURM_LOCALID"),
        (SLURM | {"SLURM_PROCID": "3"}, "SLURM_PROCID must be below SLURM_NTASKS"),
        ({"DSTACK_NODE_RANK": "0"}, "DSTACK_NODES_NUM"),
        (DSTACK | {"DSTACK_MASTER_NODE_IP": ""}, "DSTACK_MASTER_NODE_IP"),
        (DSTACK | {"DSTACK_NODE_RANK": "one"}, "DSTACK_NODE_RANK must be a number"),
        (DSTACK | {"DSTACK_NODES_IPS": "10.0.0.4"}, "DSTACK_NODES_IPS"),
        (DSTACK | {"DSTACK_NODES_IPS": "10.0.0.5\n10.0.0.4"}, "DSTACK_MASTER_NODE_IP first"),
        (RUNPOD | {"RAY_WORKER": "yes"}, "RAY_WORKER must be 0 or 1"),
        (RUNPOD | {"RUNPOD_POD_ID": "abc123"}, "HEAD_POD_ID and RAY_WORKER must agree"),
        (RUNPOD | {"HEAD_POD_ID": "abc.runpod.internal"}, "HEAD_POD_ID must be only the id of a pod"),
        (RUNPOD | {"EXPECTED_WORKERS": "-1"}, "EXPECTED_WORKERS"),
        (RUNPOD | GCP, "RAY_WORKER and GCP_WORKER belong to different clusters"),
        ({"GCP_HEAD_IP": "10.1.2.3"}, "GCP_HEAD_IP needs GCP_WORKER"),
        (GCP | {"GCP_HEAD_IP": "10.1.2.3:6379"}, "GCP_HEAD_IP must be a host name or IPv4 address"),
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE must be 1"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT"),
    ],
)
def test_discover_names_invalid_variable(env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        discover(env, Flags())
    assert named in str(error.value)
    assert error.value.exit_code == 2


def test_discover_role_follows_host_list() -> None:
    hosts = {"SLURM_RL_HOSTS": "n1,n2,n3"}
    assert discover_role(SLURM | hosts, Flags()) == NodeRole(1, 3, "77", ("n1", "n2", "n3"))
    # srun numbers its tasks in any order.
    assert discover_role(SLURM | hosts | {"SLURMD_NODENAME": "n3"}, Flags()).rank == 2
    with pytest.raises(ConfigError, match=r"SLURMD_NODENAME must be one of the nodes .*n9"):
        discover_role(SLURM | hosts | {"SLURMD_NODENAME": "n9"}, Flags())
    assert discover_role({}, Flags(rank=0, num_nodes=1, job_key="local-1")) == NodeRole(0, 1, "local-1")
    # The launcher's flags win inside an allocation.
    assert discover_role(SLURM, Flags(rank=0, num_nodes=1, job_key="local-1")).rank == 0
    with pytest.raises(ConfigError, match="a node agent needs"):
        discover_role(RUNPOD, Flags())


def test_own_address_follows_route() -> None:
    assert own_address("localhost") == own_address("127.0.0.3") == "127.0.0.1"
    with pytest.raises(BringUpError, match=r"must resolve .*no-such-node\.invalid"):
        own_address("no-such-node.invalid")
