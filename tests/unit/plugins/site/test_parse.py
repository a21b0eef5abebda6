import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.config.gres import parse_gpus
from slurm_rl.launch.slurm.partitions import parse_limit
from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import list_folders
from slurm_rl.plugins.site.slurm_facts import (
    NodeKind,
    Partition,
    parse_sinfo,
    rank_partitions,
    takes_jobs,
)
from tests.unit.plugins.site.samples import H100_SINFO, UNTYPED_SINFO


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:8(S:0-1)", {"a100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu:8(S:0,1)", {"": 8}),
        ("gpu:h100_80gb:4,shard:h100_80gb:16", {"h100_80gb": 4}),
        ("gpu:a100:2,gpu:a100_1g.5gb:7", {"a100": 2, "a100_1g.5gb": 7}),
        ("gpu:tesla:4(S:0-1),nvme:1", {"tesla": 4}),
        ("gpu", {"": 1}),
        ("(null)", {}),
        ("shard:8", {}),
        ("", {}),
    ],
)
def test_gpus_are_counted_by_type(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("infinite", None),
        ("UNLIMITED", None),
        ("n/a", None),
        ("2-00:00:00", 2880),
        ("1:00:00", 60),
        ("30:00", 30),
        ("7-12:00:00", 10800),
    ],
)
def test_limits_are_in_minutes(text: str, minutes: int | None) -> None:
    assert parse_limit(text) == minutes


@pytest.mark.parametrize(
    "state", ["idle", "mixed", "allocated", "allocated+", "completing", "planned", "idle~", "mixed-", "idle#", "idle%"]
)
def test_states_that_accept_jobs(state: str) -> None:
    assert takes_jobs(state)


@pytest.mark.parametrize(
    "state", ["idle*", "down", "down*", "drained", "drained*", "draining@", "maint", "idle$", "inval", "unknown*"]
)
def test_states_that_accept_no_jobs(state: str) -> None:
    assert not takes_jobs(state)


def test_nodes_that_differ_in_state_are_one_type() -> None:
    long, *others = parse_sinfo(H100_SINFO)
    assert (long.name, long.is_default, long.is_up, long.max_time_min) == ("long", True, True, 2880)
    assert [other.name for other in others] == ["cpu", "debug"]
    [kind] = long.kinds
    assert (kind.num_nodes, kind.num_usable, kind.cpus, kind.mem_mb) == (12, 10, 104, 1900000)
    assert (kind.gpu_type, kind.num_gpus, kind.features) == ("H100", 8, ("h100", "ib"))


def test_extra_output_of_sinfo_is_skipped() -> None:
    noise = "slurm_load_partitions: warning\n\na|b|c\nx|up|infinite|many|4|5|(null)|idle|(null)\n"
    assert parse_sinfo(noise + UNTYPED_SINFO) == parse_sinfo(UNTYPED_SINFO)
    assert parse_sinfo("") == []


@given(st.text(max_size=200))
def test_any_text_is_parsed(text: str) -> None:
    parse_sinfo(text), find_model(text)


def partition(name: str, gres: str, nodes: int, limit: int | None = None) -> Partition:
    return Partition(name, False, True, limit, [NodeKind(64, 512000, gres, (), nodes, nodes)])


def test_full_gpus_are_preferred_to_slices() -> None:
    mixed = partition("x", "gpu:a100:2,gpu:a100_1g.5gb:14", 1)
    assert (mixed.kind.gpu_type, mixed.kind.num_gpus) == ("a100", 2)


def test_kind_with_most_gpus_in_service_counts() -> None:
    text = "g*|up|infinite|4|64|512000|gpu:v100:4|idle|old\ng*|up|infinite|3|64|512000|gpu:h100:8|mixed|new"
    [found] = parse_sinfo(text)
    assert found.kind.gpu_type == "h100"
    [other] = parse_sinfo(text.replace("mixed", "drained"))
    assert other.kind.gpu_type == "v100"


def test_long_gpu_partitions_come_first() -> None:
    found = [
        partition("batch", "(null)", 100),
        partition("debug", "gpu:h100:8", 50),
        partition("small", "gpu:h100:4", 2),
        partition("large", "gpu:h100:8", 20),
    ]
    assert [one.name for one in rank_partitions(found)] == ["large", "small", "debug", "batch"]


@pytest.mark.parametrize(
    ("name", "accelerator", "mem_gb"),
    [
        ("a100", "nvidia", 40),
        ("nvidia_h100_80gb_hbm3", "nvidia", 80),
        ("tesla_v100-sxm2-32gb", "nvidia", 32),
        ("nvidia_a100_1g.5gb", "nvidia", 5),
        ("gh200_480gb", "nvidia", 96),
        ("a10g", "nvidia", 24),
        ("pascal", "nvidia", None),
        ("MI250", "amd", 64),
        ("amd_instinct_mi300x_oam", "amd", 192),
        ("mi325x", "amd", 256),
        ("gfx90a", "amd", None),
    ],
)
def test_type_implies_vendor_and_memory(name: str, accelerator: str, mem_gb: int | None) -> None:
    found = find_model(name)
    assert found is not None
    assert (found.accelerator, found.mem_gb) == (accelerator, mem_gb)


@pytest.mark.parametrize("name", ["fake", "", "gpu", "xpu", "big"])
def test_other_types_imply_nothing(name: str) -> None:
    assert find_model(name) is None


MOUNTS = [("/", "ext4"), ("/home", "nfs4"), ("/scratch", "lustre"), ("/tmp", "tmpfs"), ("/ceph", "fuse.ceph-fuse")]


def test_folders_on_all_nodes_come_first() -> None:
    environ = {"SCRATCH": "/scratch/me", "HOME": "/home/me", "WORK": "/data/me", "PROJECT": ""}
    found = list_folders(environ, "/tmp/here", MOUNTS)
    assert [folder.word for folder in found] == ["${oc.env:SCRATCH}", "${oc.env:HOME}", "${oc.env:WORK}", ""]
    assert [folder.is_shared for folder in found] == [True, True, False, False]


def test_network_file_systems_are_known_by_type() -> None:
    assert list_folders({}, "/ceph/a", MOUNTS)[0].is_shared
    assert not list_folders({}, "/opt", [("/", "fuse.sshfs")])[0].is_shared
