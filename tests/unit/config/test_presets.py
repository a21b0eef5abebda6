"""Every shipped preset loads, and a site's own stand beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from slurm_rl.config.load import SITE_DIR_VARIABLE, conf_dir, load_config
from slurm_rl.errors import ConfigError

# What a preset leaves to the user, and says so.
NEEDED = {
    "cluster/ray": ["cluster.address=http://head:8265"],
    "model/hf": ["model.path=hub/model"],
    "exp/ppo_llama3_8b": ["reward.model.path=/models/rm"],
    "exp/sft_llama3_8b": ["model.path=hub/model"],
    # Longer prompts than the demo's model has room for.
    **{f"data/{name}": ["model=hf", "model.path=hub/model"] for name in ("gsm8k", "math", "mathv60k")},
}
PRESETS = sorted(str(path.relative_to(conf_dir()).with_suffix("")) for path in conf_dir().glob("*/*.yaml"))
NEEDED |= {
    f"exp/{path.stem}": [*NEEDED.get(f"exp/{path.stem}", []), "+cluster=nvidia_h100"]
    for path in (conf_dir() / "exp").glob("*_*.yaml")
    if not path.stem.endswith("_tiny")
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads(preset: str) -> None:
    group, _, option = preset.partition("/")
    words = [f"+{group}={option}", *NEEDED.get(preset, []), *([] if group in ("external", "exp") else ["+exp=demo"])]
    assert load_config(words) == load_config([word.removeprefix("+") for word in reversed(words)])


def test_an_experiment_names_no_machine_and_a_cluster_no_model() -> None:
    for path in conf_dir().glob("exp/*.yaml"):
        assert not {"cluster", "container", "job"} & set(yaml.safe_load(path.read_text())), path
    for path in conf_dir().glob("cluster/*.yaml"):
        assert set(yaml.safe_load(path.read_text())) <= {"defaults", "cluster", "container", "job", "ray"}, path


def test_there_is_a_preset_for_each_kind_of_machine() -> None:
    wanted = "local nvidia_a100 nvidia_h100 nvidia_h200 amd_mi250 amd_mi300 slurm_cpu site_template"
    assert {f"cluster/{name}" for name in wanted.split()} <= set(PRESETS)


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_site_has_presets_of_its_own(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    template = (conf_dir() / "cluster" / "site_template.yaml").read_text()
    (tmp_path / "cluster" / "mysite.yaml").write_text(template.replace("partition: null", "partition: gpu"))
    if by == "variable":
        monkeypatch.setenv(SITE_DIR_VARIABLE, str(tmp_path))
    config = load_config(["+exp=demo", "+cluster=mysite"], config_dir=str(tmp_path) if by == "flag" else None)
    assert (config.cluster.slurm.partition, config.cluster.num_nodes) == ("gpu", 2)
    assert config.cluster.accelerator == "nvidia"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-dir must name a folder.*nowhere"):
        load_config([], config_dir=str(tmp_path / "nowhere"))


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"(?s)nvidia_h1000.*nvidia_h100"):
        load_config(["+exp=demo", "+cluster=nvidia_h1000"])


def test_a_table_says_how_it_grows() -> None:
    with pytest.raises(ConfigError, match=r"\+cluster.slurm.extra.<name>"):
        load_config(["+exp=demo", "cluster.slurm.extra={switches: 1}"])


def test_quoting_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"quote values"):
        load_config(["+exp=demo", "run_dir=a(b"])


def test_presets_of_prepared_data_begin_where_they_were_prepared() -> None:
    config = load_config(["+exp=demo", "+data=gsm8k", "data.root=/shared/data", "model=hf", "model.path=hub/model"])
    assert config.data.train == "/shared/data/gsm8k/train.jsonl"
    assert config.data.eval == "/shared/data/gsm8k/test.jsonl"
