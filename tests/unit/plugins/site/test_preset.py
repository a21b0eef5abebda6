from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_rl.config.gres import parse_gpus
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.launch.slurm.partitions import parse_limit
from slurm_rl.plugins.site.answers import choose_answers
from slurm_rl.plugins.site.gpu_models import find_model
from slurm_rl.plugins.site.machine import Findings, inspect_site, list_folders
from slurm_rl.plugins.site.preset import Preset, build_preset
from slurm_rl.plugins.site.slurm_facts import NodeKind, Partition, parse_sinfo, rank_partitions, takes_jobs
from tests.unit.plugins.site.samples import AMD_SINFO, CPU_SINFO, H100_SINFO, TEST_SINFO, UNTYPED_SINFO, Site


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide runtimes, folders and settings of the test machine."""
    for name in ("SCRATCH", "PSCRATCH", "WORK", "WORKDIR", "PROJECT", "DATA", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SBATCH_PARTITION", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("slurm_rl.plugins.site.machine._RUNTIMES", ())


def build(site: Site, told: Mapping[str, str] | None = None) -> tuple[Findings, Preset, dict[str, Any]]:
    findings = inspect_site(site)
    preset = build_preset(findings, choose_answers(findings, told or {}), ["a header"])
    return findings, preset, yaml.safe_load(preset.text)


def compose(preset: Preset, folder: Path) -> RunConfig:
    (folder / "cluster").mkdir(exist_ok=True)
    (folder / "cluster" / "written.yaml").write_text(preset.text)
    return load_config(["+cluster=written", "+exp=demo"], config_dir=str(folder), is_run=False)


def comment(preset: Preset, key: str) -> str:
    """Return the comment on this key with the source of its value."""
    return next(part for part in " ".join(preset.text.split("\n#   ")).split("\n# ") if part.startswith(f"{key}: "))


def test_preset_of_full_h100_nodes(tmp_path: Path) -> None:
    _, preset, tree = build(Site())
    cluster = tree["cluster"]
    assert (cluster["accelerator"], cluster["gpu_type"], cluster["gpus_per_node"]) == ("nvidia", "H100", 8)
    assert cluster["slurm"] == {"partition": "long", "account": None, "exclusive": True}
    assert tree["job"] == {"time_limit": "1-00:00:00", "max_failures": 3}
    assert "of which 10 take jobs now" in comment(preset, "cluster.num_nodes")
    assert "gpu:H100:8(S:0-1)" in comment(preset, "cluster.gpu_type")
    assert "doctor shows whether it has more" in comment(preset, "cluster.gpu_mem_gb")
    assert "seen here: pyxis" in comment(preset, "container.image")
    config = compose(preset, tmp_path)
    assert (config.cluster.gpu_mem_gb, config.ray.object_store_gb) == (80, 32)
    for section, values in tree.items():
        assert [key for key in values if f"# {section}.{key}" not in preset.text] == []
    assert max(map(len, preset.text.splitlines())) <= 120


def test_assumptions_are_marked_and_listed() -> None:
    _, preset, _ = build(Site())
    assert "assumed: " in comment(preset, "cluster.slurm.partition")
    assert {"cluster.slurm.partition", "cluster.num_nodes"} <= set(preset.assumed)
    _, told, _ = build(Site(), {"partition": "debug", "account": "other"})
    assert not {"cluster.slurm.partition", "cluster.slurm.account"} & set(told.assumed)
    assert "given on the command line" in comment(told, "cluster.slurm.partition")


def test_gpus_without_type_are_assumed_nvidia() -> None:
    keys = ("accelerator", "gpu_type", "gpu_mem_gb")
    _, preset, tree = build(Site(UNTYPED_SINFO))
    assert [tree["cluster"][key] for key in keys] == ["nvidia", None, None]
    assert "cluster.accelerator" in preset.assumed
    _, _, tree = build(Site(UNTYPED_SINFO), {"accelerator": "amd"})
    assert tree["cluster"]["accelerator"] == "amd"
    _, preset, tree = build(Site(AMD_SINFO))
    assert [tree["cluster"][key] for key in keys] == ["amd", "amd_instinct_mi300x_oam", 192]
    assert "cluster.accelerator" not in preset.assumed


def test_gpus_of_unknown_vendor_are_omitted_until_named(tmp_path: Path) -> None:
    _, preset, tree = build(Site(TEST_SINFO))
    assert (tree["cluster"]["accelerator"], tree["cluster"]["gpus_per_node"]) == ("cpu", 0)
    assert "--accelerator nvidia" in comment(preset, "cluster.accelerator")
    assert "cluster.accelerator" in preset.assumed
    _, preset, tree = build(Site(TEST_SINFO), {"accelerator": "nvidia"})
    assert (tree["cluster"]["gpu_type"], tree["cluster"]["gpus_per_node"]) == ("fake", 2)
    assert compose(preset, tmp_path).cluster.accelerator == "nvidia"


def test_nodes_without_gpus_are_shared(tmp_path: Path) -> None:
    _, preset, tree = build(Site(CPU_SINFO))
    assert tree["cluster"]["slurm"]["exclusive"] is False
    assert (tree["cluster"]["cpus_per_node"], tree["cluster"]["mem_gb_per_node"]) == (8, 16)
    assert tree["job"]["time_limit"] == "0-12:00:00"
    assert "ray" not in tree
    assert compose(preset, tmp_path).cluster.cpus_per_node == 8


def test_silent_sinfo_or_closed_partitions_give_no_preset() -> None:
    with pytest.raises(SlurmUnavailableError):
        inspect_site(Site(silent=["sinfo"]))
    with pytest.raises(ConfigError, match=r"must be up; got main.*sinfo -s"):
        build(Site(UNTYPED_SINFO.replace("|up|", "|down|")))


def test_environment_choices_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    _, preset, tree = build(Site())
    assert tree["cluster"]["slurm"]["partition"] == "debug"
    assert "cluster.slurm.partition" not in preset.assumed


@pytest.mark.parametrize(
    ("image", "runtime"),
    [("/images/rl.sqsh", "pyxis"), ("/images/rl.sif", "apptainer"), ("nvcr.io#nvidia/pytorch:25.01-py3", "pyxis")],
)
def test_image_selects_runtime(image: str, runtime: str, tmp_path: Path) -> None:
    _, preset, tree = build(Site(), {"image": image})
    assert tree["container"] == {"runtime": runtime, "image": image}
    assert "python3 of the image" in comment(preset, "cluster.python")
    assert compose(preset, tmp_path).container.image == image


def test_chosen_network_is_shipped_preset(tmp_path: Path) -> None:
    _, preset, _ = build(Site(), {"network": "eth0"})
    config = compose(preset, tmp_path)
    assert (config.cluster.network_interface, config.cluster.env["NCCL_IB_DISABLE"]) == ("eth0", "1")
    compose(build(Site())[1], tmp_path)
    config = load_config(["+cluster=written", "+network=ib"], config_dir=str(tmp_path), is_run=False)
    assert config.cluster.network_interface == "ib0"


@pytest.mark.parametrize(
    ("key", "told", "says"),
    [
        ("partition", "nope", r"must be one of .*got"),
        ("accelerator", "tpu", r"must be one of .*got"),
        ("network", "ethernet", r"must be one of .*got"),
        ("run_root", "/a\nb: c", "one line"),
    ],
)
def test_impossible_answers_are_refused(key: str, told: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build(Site(), {key: told})


# Special characters of YAML, OmegaConf, terminals and Unicode; line breaks and | separate the fields of sinfo.
WORD = st.text(
    "ab0 '\"#:{}[]&*!%@`,?-$\\~=<>\t\x00\x1b\x7f\u00a0\u00e9\u200b\u202e\ufeff\U0001f600", min_size=1, max_size=12
)


@settings(derandomize=True, max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(name="a\u00a0b", gres="a100", features="x", said="y")
@given(name=WORD.filter(lambda text: text.strip("*") == text and text.strip()), gres=WORD, features=WORD, said=WORD)
def test_any_site_names_give_valid_yaml(name: str, gres: str, features: str, said: str) -> None:
    site = Site(f"{name}*|up|infinite|3|64|512000|gpu:{gres}:8|idle|{features}\n")
    site.answers["scontrol show config"] = f"ClusterName = {said}\nTmpFS = {said}\n"
    _, preset, tree = build(site)
    assert tree["cluster"]["slurm"]["partition"] == name
    assert all(char.isprintable() or char == "\n" for char in preset.text if ord(char) < 256)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:8(S:0-1)", {"a100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu:h100_80gb:4,shard:h100_80gb:16", {"h100_80gb": 4}),
        ("gpu:a100:2,gpu:a100_1g.5gb:7", {"a100": 2, "a100_1g.5gb": 7}),
        ("gpu:a100:4(S:0,2),gpu:v100:2(S:1)", {"a100": 4, "v100": 2}),
        ("nvme:1,gpu:mi300x:8,craynetwork:4", {"mi300x": 8}),
        ("gpu_mem:80,shard:gpu:4", {}),
        ("gpu", {"": 1}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_gpus_are_counted_by_type(gres: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(gres) == gpus


@pytest.mark.parametrize(
    ("text", "minutes"), [("infinite", None), ("UNLIMITED", None), ("n/a", None), ("7-12:00:00", 10800), ("30:00", 30)]
)
def test_limits_are_in_minutes(text: str, minutes: int | None) -> None:
    assert parse_limit(text) == minutes


def test_states_accept_jobs_or_not() -> None:
    accepting = "idle mixed allocated allocated+ completing planned idle~ mixed- idle# idle%"
    refusing = "idle* down down* drained drained* draining@ maint idle$ inval unknown*"
    assert [state for state in f"{accepting} {refusing}".split() if takes_jobs(state)] == accepting.split()


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


def test_kind_with_most_gpus_in_service_counts() -> None:
    text = "g*|up|infinite|4|64|512000|gpu:v100:4|idle|old\ng*|up|infinite|3|64|512000|gpu:h100:8|mixed|new"
    [found] = parse_sinfo(text)
    assert found.kind.gpu_type == "h100"
    [other] = parse_sinfo(text.replace("mixed", "drained"))
    assert other.kind.gpu_type == "v100"
    mixed = partition("x", "gpu:a100:2,gpu:a100_1g.5gb:14", 1)
    assert (mixed.kind.gpu_type, mixed.kind.num_gpus) == ("a100", 2), "whole GPUs before slices"


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
        ("gh200_480gb", "nvidia", 96),
        ("nvidia_a100_1g.5gb", "nvidia", 5),
        ("a10g", "nvidia", 24),
        ("pascal", "nvidia", None),
        ("MI250", "amd", 64),
        ("amd_instinct_mi300x_oam", "amd", 192),
        ("gfx90a", "amd", None),
    ],
)
def test_type_implies_vendor_and_memory(name: str, accelerator: str, mem_gb: int | None) -> None:
    found = find_model(name)
    assert found is not None
    assert (found.accelerator, found.mem_gb) == (accelerator, mem_gb)
    assert [other for other in ("fake", "", "gpu", "xpu", "big") if find_model(other)] == []


MOUNTS = [("/", "ext4"), ("/home", "nfs4"), ("/scratch", "lustre"), ("/tmp", "tmpfs"), ("/ceph", "fuse.ceph-fuse")]


def test_folders_on_all_nodes_come_first() -> None:
    environ = {"SCRATCH": "/scratch/me", "HOME": "/home/me", "WORK": "/data/me", "PROJECT": ""}
    found = list_folders(environ, "/tmp/here", MOUNTS)
    assert [folder.word for folder in found] == ["${oc.env:SCRATCH}", "${oc.env:HOME}", "${oc.env:WORK}", ""]
    assert [folder.is_shared for folder in found] == [True, True, False, False]
    assert list_folders({}, "/ceph/a", MOUNTS)[0].is_shared
    assert not list_folders({}, "/opt", [("/", "fuse.sshfs")])[0].is_shared
