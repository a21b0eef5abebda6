"""Each rank reads its own part of a model, and holds no more; the weights are those of the whole model, bit for bit."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, multiprocessing

from benchmarks.load_memory import BACKENDS, measure, write_model
from slurm_rl.config.model import LoraConfig, ModelConfig, TinyVLConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.engine.distributed import init_process_group, leave_process_group
from slurm_rl.engine.frozen import FrozenModel
from slurm_rl.engine.load_model import load_model, open_model
from slurm_rl.engine.policy import PolicyEngine
from slurm_rl.engine.tiny_vl import build_tiny_vl
from slurm_rl.math.sequences import TrainSequence
from tests.tiny_llama import build_tiny_llama
from tests.unit.engine.test_store_address import free_port

KINDS: dict[str, tuple[ModelConfig, int | None]] = {
    "bfloat16": (ModelConfig(path="", dtype="bfloat16"), None),
    "adapters": (ModelConfig(path="", lora=LoraConfig(rank=4, alpha=8.0)), None),
    "reward model": (ModelConfig(path=""), 7),
}
CASES = list(itertools.product(BACKENDS, KINDS))


def load(folder: Path, backend: str, kind: str, num_ranks: int) -> dict[str, Tensor]:
    """All weights of the engine, whole on every rank."""
    model, score_seed = KINDS[kind]
    policy = PolicyConfig(num_workers=num_ranks, num_threads=1, **BACKENDS[backend])
    engine = PolicyEngine(
        folder,
        model.model_copy(update={"path": str(folder)}),
        policy,
        OptimConfig(),
        temperature=1.0,
        score_seed=score_seed,
    )
    return dict(engine.backend.full_state(place=torch.device("cpu")))


def _load_on_rank(rank: int, folder: Path, port: int, out: Path) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, 300)
    found: dict[str, object] = {f"{backend} {kind}": load(folder, backend, kind, 2) for backend, kind in CASES}
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
    """A model in bfloat16, and what two ranks made of it."""
    folder, out = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("out")
    build_tiny_llama(folder)
    multiprocessing.spawn(_load_on_rank, (folder, free_port(), out), 2)  # type: ignore[no-untyped-call]
    return folder, [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("backend", "kind"), CASES)
def test_two_ranks_have_together_the_weights_that_one_loads_whole(
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
        assert bool(adapters) == (kind == "adapters")
        assert all(bool(value.any()) == (".lora_A." in name) for name, value in adapters.items())
        assert all(torch.equal(value, ranks[0][f"{backend} {kind}"][name]) for name, value in adapters.items())  # type: ignore[index]


def test_a_reference_that_is_split_answers_as_a_whole_one(split: tuple[Path, list[dict[str, object]]]) -> None:
    folder, ranks = split
    whole = FrozenModel(folder, ModelConfig(path=str(folder)), PolicyConfig(), 1.0, torch.device("cpu"))
    [[expected]] = whole.compute_logprobs([[SEQUENCE]])
    for rank in ranks:
        assert (rank["reference"] == expected).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_holds_little_more_than_its_part_while_it_loads(tmp_path: Path, backend: str) -> None:
    """At most 1.2 times its shard and one tensor; the smaller the model, the more everything else weighs."""
    write_model(tmp_path, 0.4, hidden_size=512, vocab_size=8000)
    for peak in measure(tmp_path, backend, 2):
        assert peak.over_shard <= 1.2


def test_who_cannot_be_read_tensor_by_tensor_is_loaded_whole(tmp_path: Path) -> None:
    """Published names of a vision model's weights are others than those of its parameters; a missing one is told."""
    build_tiny_vl(TinyVLConfig(), 0, tmp_path / "vl")
    model, files = open_model(tmp_path / "vl", ModelConfig(path=str(tmp_path / "vl")))
    assert files is None and not any(p.is_meta for p in model.parameters())
    build_tiny_llama(tmp_path / "llama")
    shutil.copytree(tmp_path / "llama", tmp_path / "copy")
    model, files = open_model(tmp_path / "copy", ModelConfig(path=str(tmp_path / "copy")))
    assert files is not None and all(p.is_meta for p in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
