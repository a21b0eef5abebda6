"""LoRA adapters: training, saving, sending and exporting; merged and separate adapters agree.

Also on MoE and vision-language models.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)
from transformers.utils import logging

from slurm_rl.algorithms.sequences import FloatArray, PackedBatch, TrainSequence
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import require_whole_files
from slurm_rl.models.lora import merge_into_base, read_base
from slurm_rl.models.lora_layers import check_targets
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import TinyModel, TinyVL, build_tiny_model
from tests.train.model_families import FAMILIES, build_model
from tests.train.test_engine_policy import CPU, cross_entropy
from tests.unit.models.test_store_address import free_port

LORA = LoraConfig(rank=4, alpha=8.0)
SCALED = LoraConfig(rank=1, alpha=1.0)
"""Config of adapters with the scale in B."""
PATTERNS = LoraConfig(rank=4, alpha=8.0, rank_pattern={"o_proj": 2}, alpha_pattern={r"layers\.1\..*": 3.0})


def build_engine(
    folder: Path, lora: LoraConfig | None = LORA, *, dtype: Any = "float32", **fields: Any
) -> PolicyEngine:
    model = ModelConfig(path=str(folder), lora=lora, dtype=dtype)
    policy = PolicyConfig(num_threads=1)
    return PolicyEngine(folder, model, policy, OptimConfig(lr=1e-2), temperature=0.8, **fields)


def build_sequences(seed: int) -> list[TrainSequence]:
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 14, 6)
    return [TrainSequence(token_ids=random.integers(2, 14, n), trained_from=1, weight=0.1) for n in lengths]


def train(engine: PolicyEngine, seeds: range) -> list[dict[str, float]]:
    return [engine.train([build_sequences(seed)], cross_entropy, 1e-2) for seed in seeds]


def logprobs_of(engine: PolicyEngine, **options: Any) -> FloatArray:
    [found] = engine.compute_logprobs([build_sequences(99)], **options)
    return np.concatenate(found)


def logprobs_under(model: Any) -> FloatArray:
    return np.concatenate(RowReader(model.eval(), CPU).compute_logprobs(build_sequences(99), 0.8))


def test_fresh_adapters_change_nothing_and_follow_seed(folder: Path) -> None:
    plain, one, same, other = build_engine(folder, None), *(build_engine(folder, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(logprobs_of(plain), logprobs_of(one))
    first, second, third = (dict(engine.adapter_state()) for engine in (one, same, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("lora", [LORA, PATTERNS])
def test_merged_and_separate_adapters_agree(folder: Path, tmp_path: Path, lora: LoraConfig) -> None:
    """Logprobs of the engine, the merged export, peft's loading, and the base with sent adapters agree to 1e-5."""
    engine = build_engine(folder, lora)
    ranks = {(name.split(".")[-3], a.shape[0]) for name, a in engine.adapter_state() if ".lora_A." in name}
    assert ranks >= {("q_proj", 4), ("o_proj", lora.rank_of("o_proj"))}
    train(engine, range(4))
    expected = logprobs_of(engine)
    assert np.abs(expected - logprobs_of(build_engine(folder, None))).max() > 0.1, "nothing was learned"

    engine.export(tmp_path / "merged")
    engine.export_adapter(tmp_path / "adapter")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(logprobs_under(merged), expected, rtol=0, atol=1e-5)

    by_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "adapter")
    np.testing.assert_allclose(logprobs_under(by_peft.get_base_model()), expected, rtol=0, atol=1e-5)

    sent = AutoModelForCausalLM.from_pretrained(folder)
    base = read_base(folder, torch.float32)
    sent.load_state_dict(dict(merge_into_base(base, dict(engine.adapters_to_send()), SCALED)), strict=False)
    np.testing.assert_allclose(logprobs_under(sent), expected, rtol=0, atol=1e-5)


@pytest.fixture
def one_rank() -> Iterator[None]:
    init_process_group(0, 1, "127.0.0.1", free_port(), 60)
    yield
    leave_process_group()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [LORA, None])
def test_sent_weights_equal_merged_adapters(folder: Path, lora: LoraConfig | None, dtype: str, one_rank: None) -> None:
    """Bit for bit; names, types and shapes, which define vLLM's buffers, are known in advance and in order."""
    engine = build_engine(folder, lora, dtype=dtype)
    train(engine, range(2))
    sent = list(engine.full_state(CPU))
    announced = [(name, empty.dtype, empty.shape) for name, empty in engine.empty_state_to_send()]
    assert announced == [(name, tensor.dtype, tensor.shape) for name, tensor in sent]
    if lora is not None:
        base = read_base(folder, getattr(torch, dtype))
        for name, merged in merge_into_base(base, dict(engine.adapter_state()), LORA):
            assert torch.equal(dict(sent)[name], merged), name


def test_only_adapters_are_trained_and_saved(folder: Path, tmp_path: Path) -> None:
    engine = build_engine(folder, LoraConfig(rank=2, alpha=2.0, target_modules=("q_proj", "down_proj")))
    before = {n: p.detach().clone() for n, p in engine.module.named_parameters()}
    train(engine, range(2))
    changed = {n for n, p in engine.module.named_parameters() if not torch.equal(p, before[n])}
    layers = {f"model.layers.{i}.{name}" for i in range(2) for name in ("self_attn.q_proj", "mlp.down_proj")}
    adapters = {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    assert changed == adapters
    engine.save(tmp_path)
    saved = torch.load(tmp_path / "rank-0.pt", weights_only=True)
    assert saved["parameters"].keys() == saved["moments"].keys() == adapters
    assert {n.replace(".default", "") for n in adapters} == dict(engine.adapter_state()).keys()


def test_disabled_adapters_equal_base_and_training_continues(folder: Path) -> None:
    engine, undisturbed = build_engine(folder), build_engine(folder)
    for each in (engine, undisturbed):
        train(each, range(2))
    trained = logprobs_of(engine)
    assert np.array_equal(logprobs_of(engine, adapters=False), logprobs_of(build_engine(folder, None)))
    assert np.array_equal(logprobs_of(engine), trained)
    assert train(engine, range(2, 4)) == train(undisturbed, range(2, 4))


@pytest.mark.parametrize("lora", [LORA.model_copy(update={"rank": 2}), None])
def test_checkpoint_of_other_adapters_is_refused(folder: Path, tmp_path: Path, lora: LoraConfig | None) -> None:
    build_engine(folder).save(tmp_path)
    with pytest.raises(CheckpointError, match="with the lora it was saved with"):
        build_engine(folder, lora).load(tmp_path)


def test_pattern_without_layer_is_refused(folder: Path) -> None:
    lora = LoraConfig(target_modules=("q_proj",), rank_pattern={"down_proj": 2})
    with pytest.raises(ConfigError, match=r"layers with an adapter; got down_proj\. Next: choose from q_proj"):
        build_engine(folder, lora)


@pytest.mark.parametrize("target", ["qproj", "lm_head", "embed_tokens", "norm"])
def test_nonlinear_target_is_refused_with_valid_ones(folder: Path, target: str) -> None:
    lora = LoraConfig(target_modules=("q_proj", target))
    for refuse in (
        lambda: build_engine(folder, lora),
        lambda: check_targets(str(folder), ModelConfig(path=str(folder), lora=lora), are_sent=True),
    ):
        with pytest.raises(
            ConfigError, match=rf"got {target}\. Next: choose from down_proj, .*q_proj.*all-linear"
        ) as caught:
            refuse()
        assert caught.value.exit_code == 2


def test_adapter_without_base_layer_is_refused(folder: Path) -> None:
    lost = {f"model.layers.7.q_proj.lora_{part}.weight": torch.zeros(1, 1) for part in "AB"}
    with pytest.raises(ConfigError, match=r"every layer.*model\.layers\.7\.q_proj"):
        list(merge_into_base(read_base(folder, torch.float32), lost, LORA))


def test_reward_head_is_trained_and_saved_with_adapters(folder: Path, tmp_path: Path) -> None:
    """Scores of the engine, the merged export, peft's loading and the converted checkpoint agree to 1e-5."""
    engine = build_engine(folder, score_seed=3)
    start = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    for seed in range(4):
        engine.train([build_sequences(seed)], push_up, 1e-2)
    changed = {name for name, p in engine.module.named_parameters() if not torch.equal(p, start[name])}
    assert changed == {name for name in start if "lora_" in name or name == "score.weight"}
    expected = scores_of(engine)

    for name in ("merged", "adapter", "saved"):
        (tmp_path / "saved").mkdir(exist_ok=True)
        {"merged": engine.export, "adapter": engine.export_adapter, "saved": engine.save}[name](tmp_path / name)
    convert_checkpoint(tmp_path / "saved", str(folder), engine.model_config, tmp_path / "converted", 10**9)
    for name in ("merged", "converted"):
        other = build_engine(tmp_path / name, None, score_seed=9)
        np.testing.assert_allclose(scores_of(other), expected, rtol=0, atol=1e-5)
    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    [sequence] = build_sequences(99)[:1]
    with torch.no_grad():
        score = loaded(input_ids=torch.from_numpy(sequence.token_ids)[None]).logits.item()
    assert score == pytest.approx(float(expected[sequence.num_trained - 1]), abs=1e-5)


def push_up(batch: PackedBatch, scores: Tensor, _: Tensor) -> tuple[Tensor, dict[str, float]]:
    return -(scores * batch.weights).sum(), {}


def scores_of(engine: PolicyEngine) -> FloatArray:
    [found] = engine.compute_scores([build_sequences(99)])
    return np.concatenate(found)


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
    # A rollout engine gets adapters under the names in the base's files.
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
    merged = merge_into_base(read_base(folder, torch.float32), adapters, SCALED)
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
