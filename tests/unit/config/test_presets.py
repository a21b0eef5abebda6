import re
from pathlib import Path

import pytest
import yaml

from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import SITE_DIR_VARIABLE, conf_dir
from slurm_rl.errors import ConfigError

# Values that a preset requires.
NEEDED = {
    "cluster/ray": ["cluster.address=http://head:8265"],
    "model/hf": ["model.path=hub/model"],
    "exp/ppo_llama3_8b": ["reward.model.path=/models/rm"],
    "exp/sft_llama3_8b": ["model.path=hub/model"],
    # Prompts exceed the context of the demo's model.
    **{f"data/{name}": ["model=hf", "model.path=hub/model"] for name in ("gsm8k", "math", "mathv60k")},
}
PRESETS = sorted(str(path.relative_to(conf_dir()).with_suffix("")) for path in conf_dir().glob("*/*.yaml"))
NEEDED |= {
    f"exp/{path.stem}": [*NEEDED.get(f"exp/{path.stem}", []), "+cluster=nvidia_h100"]
    for path in (conf_dir() / "exp").glob("*_*.yaml")
    if not path.stem.endswith("_tiny")
}


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_loads_with_and_without_plus(preset: str) -> None:
    group, _, option = preset.partition("/")
    words = [f"+{group}={option}", *NEEDED.get(preset, []), *([] if group in ("external", "exp") else ["+exp=demo"])]
    assert load_config(words) == load_config([word.removeprefix("+") for word in words])


def test_experiments_set_no_machine_and_clusters_no_model() -> None:
    for path in conf_dir().glob("exp/*.yaml"):
        assert not {"cluster", "container", "job"} & set(yaml.safe_load(path.read_text())), path
    for path in conf_dir().glob("cluster/*.yaml"):
        assert set(yaml.safe_load(path.read_text())) <= {"defaults", "cluster", "container", "job", "ray"}, path


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_load_config_finds_presets_of_site(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    template = (conf_dir() / "cluster" / "site_template.yaml").read_text()
    (tmp_path / "cluster" / "mysite.yaml").write_text(template.replace("partition: null", "partition: gpu"))
    if by == "variable":
        monkeypatch.setenv(SITE_DIR_VARIABLE, str(tmp_path))
    config = load_config(["+exp=demo", "+cluster=mysite"], config_dir=str(tmp_path) if by == "flag" else None)
    assert (config.cluster.slurm.partition, config.cluster.num_nodes) == ("gpu", 2)
    assert config.cluster.accelerator == "nvidia"


def test_load_config_refuses_missing_config_dir(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config-dir must name a folder.*nowhere"):
        load_config([], config_dir=str(tmp_path / "nowhere"))


def test_unknown_preset_lists_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"(?s)nvidia_h1000.*nvidia_h100"):
        load_config(["+exp=demo", "+cluster=nvidia_h1000"])


def test_data_presets_begin_at_data_root() -> None:
    config = load_config(["+exp=demo", "+data=gsm8k", "data.root=/shared/data", "model=hf", "model.path=hub/model"])
    assert config.data.train == "/shared/data/gsm8k/train.jsonl"
    assert config.data.eval == "/shared/data/gsm8k/test.jsonl"


ALGORITHMS = sorted(conf_dir().glob("algorithm/*.yaml"))


@pytest.mark.parametrize("preset", ALGORITHMS, ids=lambda path: path.stem)
def test_algorithm_preset_names_paper_and_can_be_overridden(preset: Path) -> None:
    assert re.search(r"arxiv\.org/abs/\d{4}\.\d{5}", preset.read_text())
    words = ["+exp=demo", f"+algorithm={preset.stem}", "algorithm.clip_ratio_high=0.7"]
    assert load_config(words).algorithm.clip_ratio_high == 0.7


def test_algorithm_presets_differ() -> None:
    found = [
        load_config(["+exp=demo", *words]).algorithm for words in [[], *([f"+algorithm={p.stem}"] for p in ALGORITHMS)]
    ]
    assert len({repr(algorithm) for algorithm in found}) == len(ALGORITHMS) + 1 == 12


def test_algorithm_presets_match_their_papers() -> None:
    dapo = load_config(["+exp=demo", "+algorithm=dapo"]).algorithm
    assert (dapo.clip_ratio_low, dapo.clip_ratio_high, dapo.aggregation, dapo.kl.coef) == (0.2, 0.28, "token-mean", 0.0)
    assert (dapo.overlong.buffer_share, dapo.clip_ratio_c) == (0.2, 3.0)
    config = load_config(["+exp=demo", "+algorithm=dr_grpo"])
    assert config.algorithm.aggregation_length == config.rollout.max_tokens
    assert load_config(["+exp=demo", "+algorithm=gspo"]).algorithm.clip_ratio_low == 3e-4
    assert load_config(["+exp=demo", "+algorithm=reinforce_pp", "algorithm.group_size=1"]).algorithm.group_size == 1


def test_load_config_makes_local_paths_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "model", "addition"):
        (tmp_path / name).mkdir()
    words = ["+exp=demo", "data.train=rows.jsonl", "model=hf", "model.path=model", "reward.verifiers.arithmetic=1"]
    config = load_config(words)
    assert (config.data.train, config.model.path) == (f"{tmp_path}/rows.jsonl", f"{tmp_path}/model")
    config = load_config(["+exp=demo", "model=hf", "model.path=Qwen/Qwen3-0.6B"])
    assert (config.data.train, config.model.path) == ("addition", "Qwen/Qwen3-0.6B")
