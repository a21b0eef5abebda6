"""Models named as on the hub: found in data.root and the hub's cache, required on nodes without internet."""

import json
from pathlib import Path

import pytest

from slurm_rl.config.hub_names import find_snapshot
from slurm_rl.config.load import load_config
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.offline_checks import check_local_files
from slurm_rl.plan.accelerator import list_variables

NAME = "Acme/tiny-1B"
OFFLINE = "cluster.internet=false"


def write_model(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", *more):
        (folder / name).write_text(json.dumps({}))
    return folder


def configure(*words: str) -> RunConfig:
    return load_config(["+exp=demo", "model=hf", f"model.path={NAME}", *words])


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def test_prepared_model_is_found_by_hub_name(tmp_path: Path) -> None:
    assert configure().model.path == NAME
    folder = write_model(tmp_path / "data" / NAME)
    assert configure().model.path == NAME, "not complete: without a manifest"
    (folder / "manifest.json").touch()
    config = configure("data.root=data", f"reference.path={NAME}", "algorithm.kl.coef=0.1")
    assert (config.model.path, config.reference.path) == (str(folder), str(folder))
    assert configure("data.root=other").model.path == NAME


def test_offline_run_reads_hub_cache_by_folder(tmp_path: Path) -> None:
    cache = tmp_path / "hf/hub/models--Acme--tiny-1B"
    main, newer = (write_model(cache / "snapshots" / commit) for commit in ("aaa", "bbb"))
    assert find_snapshot(NAME) == newer
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("aaa")
    assert configure(OFFLINE).model.path == str(main)
    assert configure().model.path == NAME
    variables = {item.name: item.value for item in list_variables(configure(OFFLINE), "/run")}
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in {item.name for item in list_variables(configure(), "/run")}
    check_local_files(configure(OFFLINE))


def test_offline_run_refuses_models_without_local_copy(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text("{}")
    words = ["data.train=openai/gsm8k", "reward.model.path=Acme/judge", f"model.init_from={half}"]
    with pytest.raises(ConfigError) as found:
        check_local_files(configure(OFFLINE, *words))
    text = str(found.value)
    assert f"model.path={NAME} (python -m slurm_rl prepare model {NAME} --root data)" in text
    assert all(word in text for word in words)
