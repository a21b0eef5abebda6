"""Each rank reads and holds only its own part of a model; together they equal the whole model, bit for bit."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import SAFE_WEIGHTS_NAME

from benchmarks.load_memory import BACKENDS, measure, write_model
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.frozen import FrozenModel
from slurm_rl.models.load_model import load_model, open_model
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.weight_files import find_weights
from tests.tiny_llama import build_tiny_llama
from tests.tiny_models import TinyModel, TinyVL, build_character_tokenizer, build_tiny_model
from tests.unit.models.test_store_address import free_port

KINDS: dict[str, tuple[ModelConfig, int | None]] = {
    "bfloat16": (ModelConfig(path="", dtype="bfloat16"), None),
    "adapters, bfloat16": (ModelConfig(path="", dtype="bfloat16", lora=LoraConfig(rank=4, alpha=8.0)), None),
    "reward model": (ModelConfig(path=""), 7),
}
CASES = list(itertools.product(BACKENDS, KINDS))
OTHERS = [("fsdp2", "vl"), ("zero-3", "moe")]


def build_moe(folder: Path, num_experts: int) -> None:
    Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            moe_intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            num_experts=num_experts,
            num_experts_per_tok=2,
        )
    ).save_pretrained(folder)
    build_character_tokenizer(TinyModel()).save_pretrained(folder)


def load(folder: Path, backend: str, kind: str, num_ranks: int) -> dict[str, Tensor]:
    """Return all weights of the engine, gathered on every rank."""
    model, score_seed = KINDS.get(kind, KINDS["bfloat16"])
    policy = PolicyConfig(num_workers=num_ranks, num_threads=1, **BACKENDS[backend])
    model = model.model_copy(update={"path": str(folder)})
    engine = PolicyEngine(folder, model, policy, OptimConfig(), temperature=1.0, score_seed=score_seed)
    return dict(engine.backend.full_state(place=torch.device("cpu")))


def _load_on_rank(rank: int, folder: Path, port: int, out: Path) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, 300)
    found: dict[str, object] = {f"{backend} {kind}": load(folder, backend, kind, 2) for backend, kind in CASES}
    for backend, kind in OTHERS:
        found[f"{backend} {kind}"] = load(folder / kind, backend, kind, 2)
    reference = FrozenModel(
        folder, ModelConfig(path=str(folder)), PolicyConfig(num_workers=2), 1.0, torch.device("cpu")
    )
    assert reference.is_split
    found["reference"] = reference.compute_logprobs([[SEQUENCE]])[0][0]
    torch.save(found, out / f"{rank}.pt")
    leave_process_group()


SEQUENCE = TrainSequence(token_ids=torch.arange(8, 40).numpy(), trained_from=4, weight=1.0)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """A bfloat16 model, and the weights that two ranks loaded."""
    folder, out = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("out")
    build_tiny_llama(folder)
    build_tiny_model(TinyVL(), 0, folder / "vl")
    build_moe(folder / "moe", num_experts=11)
    multiprocessing.spawn(_load_on_rank, (folder, free_port(), out), 2)  # type: ignore[no-untyped-call]
    return folder, [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_two_ranks_together_hold_loaded_weights(
    split: tuple[Path, list[dict[str, object]]], backend: str, kind: str
) -> None:
    folder, ranks = split
    model, score_seed = KINDS[kind]
    whole = load_model(folder, model.model_copy(update={"path": str(folder)}), score_seed=score_seed)
    for rank in ranks:
        found = rank[f"{backend} {kind}"]
        assert isinstance(found, dict)
        bases = {name.replace(".base_layer", ""): value for name, value in found.items() if ".lora_" not in name}
        assert bases.keys() == whole.state_dict().keys()
        assert all(torch.equal(bases[name], value) for name, value in whole.state_dict().items())
        adapters = {name: value for name, value in found.items() if ".lora_" in name}
        assert bool(adapters) == kind.startswith("adapters")
        assert all(bool(value.any()) == (".lora_A." in name) for name, value in adapters.items())
        assert all(torch.equal(value, ranks[0][f"{backend} {kind}"][name]) for name, value in adapters.items())  # type: ignore[index]


@pytest.mark.parametrize(("backend", "kind"), OTHERS)
def test_published_tensors_match_parameter_names(
    split: tuple[Path, list[dict[str, object]]], backend: str, kind: str
) -> None:
    """Qwen2.5-VL's `visual.` is `model.visual.` in transformers 5, and a MoE's experts are one parameter."""
    folder, ranks = split[0] / kind, split[1]
    config = KINDS["bfloat16"][0].model_copy(update={"path": str(folder)})
    model, files = open_model(folder, config)
    assert files is not None and all(p.is_meta for p in model.parameters())
    assert files.file_of.keys() != files.published.keys()
    whole = load_model(folder, config).state_dict()
    for rank in ranks:
        found = rank[f"{backend} {kind}"]
        assert isinstance(found, dict) and found.keys() == whole.keys()
        assert all(torch.equal(found[name], value) for name, value in whole.items())


def test_sharded_reference_equals_whole(split: tuple[Path, list[dict[str, object]]]) -> None:
    folder, ranks = split
    whole = FrozenModel(folder, ModelConfig(path=str(folder)), PolicyConfig(), 1.0, torch.device("cpu"))
    [[expected]] = whole.compute_logprobs([[SEQUENCE]])
    for rank in ranks:
        assert (rank["reference"] == expected).all()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["zero-3", "fsdp2"])
def test_rank_memory_while_loading_is_its_part(tmp_path: Path, backend: str) -> None:
    """At most 1.2 times its shard plus one tensor; in smaller models fixed costs dominate."""
    write_model(tmp_path, 0.4, hidden_size=512, vocab_size=8000)
    for peak in measure(tmp_path, backend, 2):
        assert peak.over_shard <= 1.2


def test_unsplittable_model_is_loaded_whole(tmp_path: Path) -> None:
    """If an expert is missing or not divisible, the whole-model loading reports the error."""
    build_moe(tmp_path / "moe", num_experts=4)
    folder, config = tmp_path / "moe", ModelConfig(path=str(tmp_path / "moe"))
    assert open_model(folder, config)[1] is not None
    file = folder / SAFE_WEIGHTS_NAME
    held = load_file(file)
    for lost in ("model.layers.1.mlp.experts.3.up_proj.weight", "model.layers.1.mlp.experts.3.gate_proj.weight"):
        del held[lost]
        save_file(held, file, {"format": "pt"})
        with pytest.raises(ConfigError):
            open_model(folder, config)


def test_model_with_saved_buffers_is_loaded_whole(tmp_path: Path) -> None:
    """Such as expert selection biases: only parameters are read tensor by tensor."""
    build_tiny_llama(tmp_path)
    model, files = open_model(tmp_path, ModelConfig(path=str(tmp_path)))
    assert files is not None and all(p.is_meta for p in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    model.register_buffer("expert_bias", torch.ones(2))
    save_file(
        {**{name: files.read(name) for name in files.shapes()}, "expert_bias": torch.ones(2)},
        tmp_path / SAFE_WEIGHTS_NAME,
    )
    assert find_weights(model, tmp_path) is None
