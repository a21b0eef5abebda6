"""Four gloo ranks on each mesh compute the same as one process, and load each other's checkpoints.

One group of processes runs all meshes in turn, since starting torch takes longer than the runs.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import multiprocessing

from slurm_rl.algorithms.packing import distribute
from slurm_rl.algorithms.policy_loss import build_policy_loss
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.algorithm import AlgorithmConfig
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models import fsdp2
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import TinyModel, build_tiny_model
from tests.train.test_engine_distributed import OPTIM, build_sequences
from tests.train.test_engine_policy import cross_entropy
from tests.train.test_split_loading import build_moe
from tests.unit.models.test_store_address import free_port

NUM_RANKS, NUM_STEPS, SAVED_AFTER = 4, 4, 2
MODEL = TinyModel(hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2)
LORA = LoraConfig(rank=4, alpha=8.0)
MESHES: dict[str, dict[str, Any]] = {
    "shards": {},
    "replicas": {"num_replicas": 2},
    "replicas, summed at once": {"num_replicas": 2},
    "copies": {"num_replicas": 4},
    "context": {"context_parallel": 2, "logprob_chunk_tokens": 5},
    "context of four": {"context_parallel": 4},
    "context, replicas": {"context_parallel": 2, "num_replicas": 2},
    "replicas, adapters": {"num_replicas": 2},
    "context, adapters": {"context_parallel": 4, "logprob_chunk_tokens": 5},
    "experts": {},
    "experts, replicas": {"num_replicas": 2},
    "experts, context": {"context_parallel": 2},
    "windows, context": {"context_parallel": 2},
}
"""Names and settings; the first word is the mesh. Two experts on four ranks are cut along their width."""
FAST = ("shards", "replicas", "context", "context, adapters", "experts")
"""Meshes in `make test`; the others, which combine these, are slow."""
KINDS = ("context", "context of four")
"""Meshes that run each kind of training."""


def model_of(name: str) -> str:
    return next((kind for kind in ("adapters", "experts", "windows") if kind in name), "dense")


def build_engine(root: Path, name: str, **policy: Any) -> PolicyEngine:
    folder = root / {"experts": "moe", "windows": "windows"}.get(model_of(name), "model")
    model = ModelConfig(path=str(folder), lora=LORA if model_of(name) == "adapters" else None)
    # Large models have no room for whole gradients.
    held = fsdp2.HELD_GRADIENTS * ("at once" not in name)
    with patch.object(fsdp2, "HELD_GRADIENTS", held):
        return PolicyEngine(folder, model, PolicyConfig(num_threads=1, **policy), OPTIM, temperature=0.8)


def micro_batches(step: int, engine: PolicyEngine) -> list[list[TrainSequence]]:
    """Return the micro-batches of this rank's data, some of them empty."""
    sequences = build_sequences(step)
    meshes = engine.meshes
    dealt = distribute([len(s.token_ids) for s in sequences], meshes.dims.num_data, budget=16)
    return [[sequences[i] for i in members] for members in dealt[meshes.data_rank]]


def run_steps(engine: PolicyEngine, steps: range) -> list[dict[str, float]]:
    return [engine.train(micro_batches(step, engine), cross_entropy, 1e-3) for step in steps]


def logprobs_of(engine: PolicyEngine) -> list[list[float]]:
    """Return the logprobs of each sequence of step 0, the same micro-batch on every rank."""
    [found] = engine.compute_logprobs([build_sequences(0)])
    return [values.tolist() for values in found]


def loaded_by(name: str) -> list[str]:
    """Return the meshes with checkpoints that a mesh loads: the first one's and the one before it in `MESHES`."""
    names = FAST if name in FAST else list(MESHES)
    same = [other for other in names if model_of(other) == model_of(name)]
    return list(dict.fromkeys([same[0], same[same.index(name) - 1]]))


def run_kinds(root: Path, engine: PolicyEngine, **policy: Any) -> dict[str, Any]:
    """Return the metrics of losses over whole sequences, of noise, of a reward model, and of an evaluation."""
    found: dict[str, Any] = {"evaluation": engine.evaluate(micro_batches(3, engine), cross_entropy)}
    for loss, coef in (("gspo", 0.01), ("grpo", 0.0)):
        algorithm = AlgorithmConfig(loss=loss, entropy_coef=coef)
        batches = [[with_advantages(sequence) for sequence in batch] for batch in micro_batches(5, engine)]
        compute = build_policy_loss(algorithm, None)
        found[loss] = engine.train(batches, compute, 1e-3, entropy_gradient=coef > 0)
    engine.noise_alpha = 5.0
    noisy = [[replace(s, noise_seed=len(s.token_ids)) for s in batch] for batch in micro_batches(2, engine)]
    found["noise"] = engine.train(noisy, cross_entropy, 1e-3)
    folder = root / "model"
    config = ModelConfig(path=str(folder))
    scorer = PolicyEngine(folder, config, PolicyConfig(num_threads=1, **policy), OPTIM, temperature=1.0, score_seed=7)
    [scores] = scorer.compute_scores([build_sequences(0)])
    found["scores"] = {str(place): float(values.sum()) for place, values in enumerate(scores)}
    found["reward"] = scorer.train(micro_batches(1, scorer), cross_entropy, 1e-3)
    return found


def with_advantages(sequence: TrainSequence) -> TrainSequence:
    values = np.linspace(-1, 1.5, sequence.num_trained).astype(np.float32)
    return replace(sequence, advantages=values, old_logprobs=values - 2.5)


def run_rank(rank: int, port: int, root: Path, names: list[str]) -> None:
    init_process_group(rank, NUM_RANKS, "127.0.0.1", port, timeout_s=300)
    engines = {name: build_engine(root, name, num_workers=NUM_RANKS, **MESHES[name]) for name in names}
    found: dict[str, dict[str, Any]] = {}
    for name, engine in engines.items():
        found[name] = {"logprobs": logprobs_of(engine), "metrics": run_steps(engine, range(SAVED_AFTER))}
        (folder := root / name).mkdir(exist_ok=True)
        engine.save(folder)
        found[name]["metrics"] += run_steps(engine, range(SAVED_AFTER, NUM_STEPS))
        found[name]["state"] = {key: float(tensor.double().sum()) for key, tensor in engine.full_state()}
    torch.distributed.barrier()
    for name, engine in engines.items():
        for saved in loaded_by(name):
            engine.load(root / saved)
            [found[name][f"after {saved}"]] = run_steps(engine, range(SAVED_AFTER, SAVED_AFTER + 1))
        if name in KINDS:
            found[name]["kinds"] = run_kinds(root, engine, num_workers=NUM_RANKS, **MESHES[name])
        (root / f"{name}-{rank}.json").write_text(json.dumps(found[name]))
    leave_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("meshes")
    build_tiny_model(MODEL, 0, root / "model")
    build_moe(root / "moe", 2)
    shutil.copytree(root / "model", root / "windows")
    config = json.loads((root / "model/config.json").read_text())
    kinds = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
    (root / "windows/config.json").write_text(json.dumps(config | kinds))
    multiprocessing.spawn(run_rank, args=(free_port(), root, list(FAST)), nprocs=NUM_RANKS)
    return root


@pytest.fixture(scope="module")
def slow_meshes(root: Path) -> None:
    others = [name for name in MESHES if name not in FAST]
    multiprocessing.spawn(run_rank, args=(free_port(), root, others), nprocs=NUM_RANKS)


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    params = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in names]
    return pytest.mark.parametrize("mesh", params, indirect=True)


@pytest.fixture
def mesh(request: pytest.FixtureRequest, root: Path) -> str:
    """Return the name of a mesh that has run."""
    if request.param not in FAST:
        request.getfixturevalue("slow_meshes")
    return str(request.param)


def read_result(root: Path, mesh: str, rank: int) -> dict[str, Any]:
    return dict(json.loads((root / f"{mesh}-{rank}.json").read_text()))


@pytest.fixture(scope="module")
def one_process(root: Path) -> dict[str, dict[str, Any]]:
    """Return the same values of one process by model, with the metrics after loading its own checkpoint."""
    found = {}
    for name in ("dense", "adapters", "experts", "windows"):
        engine = build_engine(root, name)
        logprobs = logprobs_of(engine)
        found[name] = {"logprobs": logprobs, "metrics": run_steps(engine, range(NUM_STEPS))}
        found[name]["state"] = {key: float(tensor.double().sum()) for key, tensor in engine.full_state()}
        if name == "dense":
            engine.load(root / "shards")
            run_steps(engine, range(SAVED_AFTER, SAVED_AFTER + 1))
            found[name]["kinds"] = run_kinds(root, engine)
    assert found["windows"]["logprobs"] != found["dense"]["logprobs"]
    return found


def close(values: Any) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-5)


@each(MESHES)
def test_mesh_equals_one_process(mesh: str, root: Path, one_process: dict[str, dict[str, Any]]) -> None:
    expected = one_process[model_of(mesh)]
    for rank in range(NUM_RANKS):
        found = read_result(root, mesh, rank)
        for ours, wanted in zip(found["logprobs"], expected["logprobs"], strict=True):
            assert ours == close(wanted)
        for step in range(NUM_STEPS):
            assert found["metrics"][step] == close(expected["metrics"][step])
        for saved in loaded_by(mesh):
            assert found[f"after {saved}"] == close(expected["metrics"][SAVED_AFTER]), saved
        if rank == 0:
            assert found["state"] == pytest.approx(expected["state"], abs=1e-3)


@each(KINDS)
def test_each_kind_of_training_shares_rows(mesh: str, root: Path, one_process: dict[str, dict[str, Any]]) -> None:
    for rank in range(NUM_RANKS):
        kinds = read_result(root, mesh, rank)["kinds"]
        assert kinds.keys() == one_process["dense"]["kinds"].keys()
        for kind, metrics in one_process["dense"]["kinds"].items():
            assert kinds[kind] == pytest.approx(metrics, rel=2e-5, abs=1e-5), kind


@each(MESHES)
def test_each_part_of_state_is_written_once(mesh: str, root: Path) -> None:
    num_parts = NUM_RANKS // MESHES[mesh].get("num_replicas", 1)
    assert json.loads((root / mesh / "layout.json").read_text())["num_workers"] == num_parts
    assert {path.name for path in (root / mesh).glob("rank-*.pt")} == {f"rank-{n}.pt" for n in range(num_parts)}
    sizes = [path.stat().st_size for path in (root / mesh).glob("rank-*.pt")]
    assert max(sizes) < 1.2 * min(sizes)
