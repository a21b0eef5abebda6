from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, SlurmRLError
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError
from slurm_rl.plugins.site.answers import choose_answers
from slurm_rl.plugins.site.machine import Findings, inspect_site
from slurm_rl.plugins.site.preset import Preset, build_preset
from tests.unit.plugins.site.samples import AMD_SINFO, CPU_SINFO, TEST_SINFO, UNTYPED_SINFO, Missing, Site


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


def test_values_have_sources() -> None:
    _, preset, tree = build(Site())
    for section, values in tree.items():
        for key in values:
            assert f"# {section}.{key}" in preset.text
    assert max(map(len, preset.text.splitlines())) <= 120


def test_assumptions_are_marked_and_listed() -> None:
    _, preset, _ = build(Site())
    assert "assumed: " in comment(preset, "cluster.slurm.partition")
    assert {"cluster.slurm.partition", "cluster.num_nodes"} <= set(preset.assumed)
    _, told, _ = build(Site(), {"partition": "debug", "account": "other"})
    assert not {"cluster.slurm.partition", "cluster.slurm.account"} & set(told.assumed)
    assert "given on the command line" in comment(told, "cluster.slurm.partition")


def test_amd_nodes(tmp_path: Path) -> None:
    _, preset, tree = build(Site(AMD_SINFO))
    assert (tree["cluster"]["accelerator"], tree["cluster"]["gpu_mem_gb"]) == ("amd", 192)
    assert compose(preset, tmp_path).cluster.gpu_type == "amd_instinct_mi300x_oam"


def test_gpus_without_type_are_assumed_nvidia() -> None:
    _, preset, tree = build(Site(UNTYPED_SINFO))
    assert (tree["cluster"]["accelerator"], tree["cluster"]["gpu_type"]) == ("nvidia", None)
    assert tree["cluster"]["gpu_mem_gb"] is None
    assert "cluster.accelerator" in preset.assumed
    _, _, tree = build(Site(UNTYPED_SINFO), {"accelerator": "amd"})
    assert tree["cluster"]["accelerator"] == "amd"


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


@pytest.mark.parametrize(
    ("site", "error"), [(Missing(), SlurmRLError), (Site(silent=["sinfo"]), SlurmUnavailableError)]
)
def test_missing_sinfo_gives_no_preset(site: Site, error: type[SlurmRLError]) -> None:
    with pytest.raises(error):
        inspect_site(site)


def test_only_closed_partitions_are_bad_input() -> None:
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


def test_command_line_may_change_network(tmp_path: Path) -> None:
    _, preset, _ = build(Site())
    compose(preset, tmp_path)
    config = load_config(["+cluster=written", "+network=ib"], config_dir=str(tmp_path), is_run=False)
    assert config.cluster.network_interface == "ib0"


@pytest.mark.parametrize("told", [{"partition": "nope"}, {"accelerator": "tpu"}, {"network": "ethernet"}])
def test_impossible_answers_list_valid_ones(told: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"must be one of .*got"):
        build(Site(), told)


def test_line_break_in_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="one line"):
        build(Site(), {"run_root": "/a\nb: c"})


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
