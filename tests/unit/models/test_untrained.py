from pathlib import Path

import pytest
import torch

from slurm_rl.config.load import load_config
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.user_parts import with_absolute_files
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.models.untrained.draw import draw_model
from tests.tiny_models import SMALL, TinyModel, TinyVL


@pytest.mark.parametrize("shape", [SMALL, TinyVL()])
def test_seed_decides_weights_and_weight_files_are_ignored(shape: TinyModel | TinyVL, tmp_path: Path) -> None:
    source = shape.write(tmp_path / "source")
    config = ModelConfig(from_config=str(source))
    state = torch.get_rng_state()
    draw_model(config, 0, tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), state)
    for name in ("other.safetensors", "pytorch_model.bin", "model.safetensors.index.json"):
        (source / name).write_text("{}")
    for seed, name in ((0, "b"), (1, "c")):
        draw_model(config, seed, tmp_path / name)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert {path.name for path in (tmp_path / "b").glob("*model*")} == {"model.safetensors"}


def test_path_and_from_config_are_exclusive() -> None:
    with pytest.raises(ConfigError, match=r"only one of model.path and model.from_config.*Next: model=hf"):
        load_config(["+exp=demo", "model.path=Qwen/Qwen3-4B"])


@pytest.mark.parametrize("name", ["/nowhere", "tiny_qwen33", "/etc"])
def test_folder_without_config_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"model.from_config must be a folder with config.json; got {name}"):
        check_inputs(load_config(["+exp=demo", f"model.from_config={name}"]), print)


def test_folder_has_absolute_path_in_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SMALL.write(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert with_absolute_files(load_config(["+exp=demo", "model.from_config=mine"])).model.from_config == str(
        tmp_path / "mine"
    )
    assert with_absolute_files(load_config(["+exp=demo"])).model.from_config == "tiny_qwen3"
