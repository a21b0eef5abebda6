"""Adapters of joined experts on two gloo ranks: gradients, merged weights, checkpoints, exports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, multiprocessing
from transformers import AutoModelForCausalLM

from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import TinyModel
from tests.tiny_moe import build_tiny_moe
from tests.train.test_engine_lora import build_sequences
from tests.train.test_engine_policy import cross_entropy
from tests.unit.models.test_store_address import free_port

SHAPE = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1)
GATE_UP, DOWN = "experts.gate_up_proj", "experts.down_proj"
LORA = LoraConfig(
    rank=4,
    alpha=8.0,
    target_modules=("q_proj",),
    target_parameters=(GATE_UP, DOWN),
    rank_pattern={DOWN: 2},
    alpha_pattern={r"layers\.1\..*": 3.0},
)
LAYOUTS = {
    "fsdp2": PolicyConfig(num_workers=2, num_threads=1),
    "zero-2": PolicyConfig(backend="deepspeed", zero_stage=2, num_workers=2, num_threads=1),
}


def build_engine(folder: Path, policy: PolicyConfig, lora: LoraConfig | None = LORA, **fields: Any) -> PolicyEngine:
    return PolicyEngine(
        folder, ModelConfig(path=str(folder), lora=lora, **fields), policy, OptimConfig(), temperature=1
    )


def train(engine: PolicyEngine, steps: range, rank: int | None = None) -> list[dict[str, float]]:
    """Each rank has half of the sequences; without a rank, one has all."""
    found = []
    for step in steps:
        sequences = build_sequences(step)
        mine = [sequences] if rank is None else [sequences[rank::2]]
        found.append(engine.train(mine, cross_entropy, 1e-2))
    return found


def run_rank(rank: int, port: int, root: Path, name: str) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, timeout_s=300)
    policy, out = LAYOUTS[name], root
    (out / "saved").mkdir(parents=True, exist_ok=True)
    engine = build_engine(root / "m", policy)
    found: dict[str, Any] = {"metrics": train(engine, range(2), rank)}
    engine.save(out / "saved")
    found["metrics"] += train(engine, range(2, 4), rank)
    state, adapters = dict(engine.full_state()), dict(engine.adapter_state())
    engine.export(out / "export")
    (out / "last").mkdir(exist_ok=True)
    engine.save(out / "last")
    torch.distributed.barrier()
    resumed = build_engine(root / "m", policy)
    resumed.load(out / "saved")
    found["resumed"] = train(resumed, range(2, 4), rank)
    found["differs"] = [n for n, t in resumed.full_state() if not torch.equal(t, state[n])]
    if name == "fsdp2":
        half = build_engine(root / "m", policy, dtype="bfloat16", gradient_checkpointing=True)
        found["bfloat16"] = train(half, range(2), rank)
    if rank == 0:
        torch.save((state, adapters), out / "state.pt")
    (out / f"{rank}.json").write_text(json.dumps(found))
    leave_process_group()


@pytest.fixture(scope="module", params=["fsdp2", pytest.param("zero-2", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    build_tiny_moe(SHAPE, path / "m")
    multiprocessing.spawn(run_rank, args=(free_port(), path, request.param), nprocs=2)
    return path


@pytest.fixture(scope="module")
def alone(root: Path) -> tuple[PolicyEngine, list[dict[str, float]]]:
    engine = build_engine(root / "m", PolicyConfig(num_threads=1))
    return engine, train(engine, range(4))


def test_two_ranks_equal_one_and_resume(root: Path, alone: tuple[PolicyEngine, list[dict[str, float]]]) -> None:
    for rank in range(2):
        found = json.loads((root / f"{rank}.json").read_text())
        for mine, its in zip(alone[1], found["metrics"], strict=True):
            assert its == pytest.approx(mine, rel=1e-4, abs=1e-6)
        assert found["resumed"] == found["metrics"][2:]
        assert found["differs"] == []
        for mine, its in zip(alone[1], found.get("bfloat16", ()), strict=False):
            assert its == pytest.approx(mine, rel=0.05, abs=0.02)


def test_merged_experts_equal_base_plus_product(root: Path) -> None:
    state, adapters = torch.load(root / "state.pt")
    base = AutoModelForCausalLM.from_pretrained(root / "m").state_dict()
    experts = {name for name in base if name.endswith((GATE_UP, DOWN))}
    assert len(experts) == 4
    assert {name.partition(".lora_")[0] for name in adapters} == experts | {
        f"model.layers.{i}.self_attn.q_proj" for i in range(2)
    }
    for name in experts:
        a, b = (adapters[f"{name}.lora_{part}.weight"] for part in "AB")
        rank, alpha = 2 if name.endswith(DOWN) else 4, 3.0 if ".1." in name else 8.0
        assert a.shape == (8, rank, base[name].shape[2])
        assert b.abs().max() > 1e-3, "no gradient reached it"
        for expert in range(8):
            expected = base[name][expert] + alpha / rank * b[expert] @ a[expert]
            torch.testing.assert_close(state[name][expert], expected, rtol=0, atol=1e-6)
    left = base.keys() - experts - {name for name in base if "q_proj" in name}
    assert all(torch.equal(base[name], state[name]) for name in left)


def test_export_and_converted_checkpoint_equal_adapted_model(
    root: Path, alone: tuple[PolicyEngine, list[dict[str, float]]], tmp_path: Path
) -> None:
    config = ModelConfig(path=str(root / "m"), lora=LORA)
    convert_checkpoint(root / "last", str(root / "m"), config, tmp_path / "converted", 10**9)
    state, _ = torch.load(root / "state.pt")
    for folder in (tmp_path / "converted", root / "export"):
        loaded = build_engine(folder, PolicyConfig(num_threads=1), None)
        written: dict[str, Tensor] = dict(loaded.full_state())
        assert all(torch.equal(written[name], tensor) for name, tensor in state.items())
        [found], [expected] = (one.compute_logprobs([build_sequences(99)]) for one in (loaded, alone[0]))
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "family",
    [
        "gpt_oss",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("mixtral", "deepseek_v3", "glm4_moe", "granitemoe")),
    ],
)
def test_adapters_of_family_train_and_switch_off(tmp_path: Path, family: str) -> None:
    build_tiny_moe(SHAPE, tmp_path / "m", family)
    one = PolicyConfig(num_threads=1)
    lora = LORA.model_copy(update={"target_modules": ("o_proj",)})
    engine, plain = build_engine(tmp_path / "m", one, lora), build_engine(tmp_path / "m", one, None)

    def logprobs(of: PolicyEngine, **options: Any) -> Any:
        return np.concatenate(of.compute_logprobs([build_sequences(99)], **options)[0])

    assert np.abs(logprobs(engine) - logprobs(plain)).max() < 1e-6
    train(engine, range(3))
    assert all(t.abs().max() > 0 for name, t in engine.adapter_state() if ".lora_B." in name)
    assert np.abs(logprobs(engine) - logprobs(plain)).max() > 1e-3
    assert np.array_equal(logprobs(engine, adapters=False), logprobs(plain))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    merged.load_state_dict(dict(engine.full_state()))
    plain.module.load_state_dict(merged.state_dict())
    np.testing.assert_allclose(logprobs(plain), logprobs(engine), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("experts.up_proj", r"got experts\.up_proj with Qwen3MoeForCausalLM, which has experts\.down_proj, exp"),
        ("mlp.gate", "got mlp.gate with"),
    ],
)
def test_other_parameters_are_refused_with_valid_ones(root: Path, target: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        build_engine(root / "m", PolicyConfig(num_threads=1), LoraConfig(target_parameters=(target,)))
    assert caught.value.exit_code == 2
