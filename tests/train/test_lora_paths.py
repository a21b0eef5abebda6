"""LoRA on MoE and vision-language models: training, export, convert and weight sync agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging

from slurm_rl.algorithms.sequences import FloatArray
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.models.load_model import require_whole_files
from slurm_rl.models.lora import merge_into_base, read_base
from slurm_rl.models.lora_layers import check_targets
from tests.tiny_models import TinyModel, TinyVL, build_tiny_model
from tests.train.model_families import FAMILIES, build_model
from tests.train.test_engine_lora import LORA, build_engine, build_sequences, logprobs_of
from tests.train.test_engine_policy import cross_entropy

logging.set_verbosity_error()
# With dense layers, which have the names of the experts' matrices.
MIXTURES = ["deepseek_v3", "glm4_moe", "ernie4_5_moe", "qwen3_moe"]
VISION = ["qwen2_5_vl", "qwen3_vl"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("deepseek_v3", "glm4_moe", "ernie4_5_moe", "qwen3_vl")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bases")
    build_tiny_model(TinyModel(characters="0123456789"), seed=0, folder=root / "tiny")
    for family in VISION:
        build_tiny_model(TinyVL(family=family), seed=0, folder=root / family)
    return root


def find_folder(root: Path, family: str) -> Path:
    """Return a folder with a tiny model of the family."""
    folder = root / family
    if not folder.exists():
        with pytest.MonkeyPatch.context() as patch:
            if family == "qwen3_moe":
                patch.setitem(FAMILIES, family, {"mlp_only_layers": [0]})
            build_model(family).save_pretrained(folder)
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(root / "tiny").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", [*SLOW, "qwen3_moe", "qwen2_5_vl"])
def test_adapter_forms_agree(folders: Path, tmp_path: Path, family: str) -> None:
    folder = find_folder(folders, family)
    engine = build_engine(folder, LORA)
    before = logprobs_of(engine)
    for seed in range(2):
        engine.train([build_sequences(seed)], cross_entropy, 1e-2)
    assert np.abs(logprobs_of(engine) - before).max() > 0.01

    (tmp_path / "saved").mkdir()
    engine.save(tmp_path / "saved")
    engine.export(tmp_path / "export")
    convert_checkpoint(tmp_path / "saved", str(folder), engine.model_config, tmp_path / "converted", 10**9)
    # A rollout engine loads the base's files and merges adapters under the files' names.
    sent = dict(engine.adapters_to_send())
    check_targets(str(folder), engine.model_config, are_sent=True)
    write_merged(folder, sent, tmp_path / "received")

    kind: Any = AutoModelForImageTextToText if family in VISION else AutoModelForCausalLM
    merged = kind.from_pretrained(folder, attn_implementation="sdpa")
    merged.load_state_dict(dict(engine.full_state()))
    assert np.abs(compute_own_logprobs(merged) - compute_own_logprobs(engine.module)).max() < 1e-5
    for name in ("export", "converted", "received"):
        loaded, info = kind.from_pretrained(tmp_path / name, output_loading_info=True, attn_implementation="sdpa")
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), name
        np.testing.assert_allclose(
            compute_own_logprobs(loaded), compute_own_logprobs(merged), rtol=0, atol=1e-6, err_msg=name
        )


@torch.no_grad()
def compute_own_logprobs(model: Any) -> FloatArray:
    """Return the logprobs of one sequence by the model's own forward."""
    ids = torch.from_numpy(build_sequences(99)[0].token_ids)[None]
    logprobs: FloatArray = model.eval()(input_ids=ids, use_cache=False).logits[0].log_softmax(-1).numpy()
    return logprobs


def write_merged(folder: Path, adapters: dict[str, torch.Tensor], out: Path) -> None:
    from safetensors.torch import save_file

    out.mkdir()
    merged = merge_into_base(read_base(folder, torch.float32), adapters, LORA.scaling, torch.device("cpu"))
    save_file(dict(merged), out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text())


def test_adapters_of_mixture_exclude_experts(folders: Path) -> None:
    engine = build_engine(find_folder(folders, "qwen3_moe"), LORA)
    assert engine.adapted is not None
    assert "model.layers.0.mlp.gate_proj" in engine.adapted.names
    assert not any("experts" in name for name in engine.adapted.names)
    assert engine.adapted.left_out == ["experts.down_proj", "experts.gate_up_proj", "mlp.gate"]
    assert 0.3 < engine.adapted.share < 0.9


def test_adapter_export_refuses_names_that_peft_moves_to_experts(folders: Path) -> None:
    folder = find_folder(folders, "qwen3_moe")
    with pytest.raises(ConfigError, match=r"got down_proj, gate_proj, up_proj\. Next: set model.lora.export=merged"):
        build_engine(folder, LORA.model_copy(update={"export": "adapter"}))
    attention = LoraConfig(rank=4, target_modules=("q_proj", "v_proj"), export="adapter")
    build_engine(folder, attention)


@pytest.mark.parametrize("family", ["qwen2_5_vl", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
def test_peft_loads_adapter_of_vision_model(folders: Path, tmp_path: Path, family: str) -> None:
    from peft import PeftModel

    engine = build_engine(folders / family, LORA)
    engine.train([build_sequences(0)], cross_entropy, 1e-2)
    engine.export_adapter(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(
        AutoModelForImageTextToText.from_pretrained(folders / family), tmp_path / "adapter"
    )
    np.testing.assert_allclose(
        compute_own_logprobs(loaded.get_base_model()), compute_own_logprobs(engine.module), rtol=0, atol=1e-5
    )


def test_check_targets_refuses_layers_that_files_hold_joined(folders: Path) -> None:
    folder = find_folder(folders, "hrm_text")
    config = ModelConfig(path=str(folder), lora=LORA)
    assert check_targets(str(folder), config, are_sent=False) is not None
    with pytest.raises(ConfigError, match=r"under its own name; got model\..*gate_proj"):
        check_targets(str(folder), config, are_sent=True)


@pytest.mark.parametrize("family", ["gpt2", "openai-gpt"])
def test_check_targets_refuses_model_without_linear_layers(tmp_path: Path, family: str) -> None:
    CONFIG_MAPPING[family](n_layer=1, n_embd=8, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"which this model does not have; got \w+LMHeadModel\. Next: train all") as e:
        check_targets(str(tmp_path), ModelConfig(path=str(tmp_path), lora=LORA), are_sent=False)
    assert e.value.exit_code == 2


@pytest.mark.parametrize("family", [*MIXTURES, *VISION, "tiny", "hrm_text"])
def test_require_whole_files_accepts_whole_folders(folders: Path, family: str) -> None:
    require_whole_files(str(find_folder(folders, family)), ModelConfig(path="model"))


def test_require_whole_files_refuses_missing_tensor(folders: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folders / "tiny" / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folders / "tiny" / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"1 missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        require_whole_files(str(tmp_path), ModelConfig(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), "1 missing: model.norm.weight"),
        (lambda state: state.update(extra=torch.zeros(1)), "1 not of this model: extra"),
        (lambda state: state.update({"model.norm.weight": torch.zeros(3)}), r"1 of another shape: model\.norm\.weight"),
    ],
)
def test_export_and_sync_refuse_foreign_state(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, message: str
) -> None:
    engine = build_engine(folders / "tiny", LORA)
    state = dict(engine.backend.full_state())
    change(state)
    monkeypatch.setattr(engine.backend, "full_state", lambda *_, **__: iter(state.items()))
    for use in (lambda: engine.export(tmp_path / "export"), lambda: list(engine.full_state())):
        with pytest.raises(CheckpointError, match=message):
            use()
    assert not (tmp_path / "export").exists()
