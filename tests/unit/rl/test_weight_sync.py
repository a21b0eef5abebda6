"""The probe after a weight sync, against engines with wrong weights. Ray actors are fakes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slurm_rl.algorithms.sequences import TokenPrompt, TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import WeightSyncError
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import load_model
from slurm_rl.rollout.weights.sync import ObjectStore, WeightSync, choose_tolerance
from slurm_rl.rollout.weights.weight_record import HeldWeights, SentWeights, pack_weights
from tests.tiny_models import TinyModel, build_tiny_model
from tests.unit.rl.fake_ray import FakeCluster, actors_of

WEIGHTS = {"a": torch.arange(4.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}


class Policy:
    def __init__(self, probe: list[float]) -> None:
        self.probe = probe

    def pack_weights(self, _: TokenPrompt) -> Any:
        records, checksum = pack_weights(WEIGHTS.items())
        return records, SentWeights(checksum, self.probe)


class Engine:
    def __init__(self, probe: list[float], *, bytes_ok: bool = True, old_version: bool = False) -> None:
        self.probe, self.bytes_ok, self.old_version = probe, bytes_ok, old_version

    def load_weights(self, version: int, records: Any, _: TokenPrompt) -> HeldWeights:
        sums = [checksum_of(records) if self.bytes_ok else "0" * 16]
        return HeldWeights(version - self.old_version, sums, self.probe)


def checksum_of(records: Any) -> str:
    return pack_weights((record.name, record.to_tensor()) for record in records)[1]


RIGHT, STALE = [-1.0, -1.0], [-2.5, -2.5]


def sync(
    engine: Engine, said: list[float] = RIGHT, dtype: str = "float32", engine_args: tuple[str, ...] = ()
) -> WeightSync:
    cluster: Any = FakeCluster()
    policy, engines = actors_of("policy", Policy(said)), actors_of("rollout", engine)
    tolerance, probe = choose_tolerance(None, dtype, num_layers=2), TokenPrompt(token_ids=[1, 2, 3])
    options: Any = {"probe": probe, "tolerance": tolerance, "timeout_s": 1, "dtype": dtype, "engine_args": engine_args}
    return WeightSync(cluster, ObjectStore(policy, engines), engines, **options)


def verify(
    engine: Engine, said: list[float] = RIGHT, dtype: str = "float32", engine_args: tuple[str, ...] = ()
) -> float:
    weights = sync(engine, said, dtype, engine_args)
    weights.push(7)
    return weights.verify()


def test_verify_skips_pushes_in_flight() -> None:
    weights = sync(Engine(STALE))
    weights.push(7)
    assert weights.verify(leave=1) == 0.0, "nothing was looked at yet"
    weights.push(8)
    with pytest.raises(WeightSyncError):
        weights.verify(leave=1)


@pytest.mark.parametrize(
    "engine",
    [Engine(RIGHT, bytes_ok=False), Engine(STALE), Engine(RIGHT, old_version=True), Engine([float("nan")] * 2)],
)
def test_verify_raises_on_stale_engine(engine: Engine) -> None:
    with pytest.raises(WeightSyncError, match="rollout-0"):
        verify(engine)


def differ(by: list[float], dtype: str) -> float:
    return verify(Engine([-1.0 - one for one in by]), [-1.0] * len(by), dtype)


def test_verify_bounds_mean_and_largest_difference() -> None:
    # 2 layers in bfloat16: 6 / 256 * sqrt(2) = 0.0331 on average, 30 times that at most.
    assert differ([0.0] * 9 + [0.99], "bfloat16") == pytest.approx(0.99)
    found = r"on average .*=0\.0331456 and each to 0\.994369; got .*0 on average and 1 at most"
    with pytest.raises(WeightSyncError, match=found):
        differ([0.0] * 9 + [1.0], "bfloat16")
    with pytest.raises(WeightSyncError, match=r"0\.04 on average"):
        differ([0.04] * 10, "bfloat16")
    with pytest.raises(WeightSyncError, match=r"weight_check_tolerance=0\.0002 and each to 0\.006"):
        differ([0.007] + [0.0] * 63, "float32")


@pytest.mark.parametrize(
    ("dtype", "engine_args", "advice"),
    [
        ("float32", (), "does not use all of the weights that it received: report a bug, since float32 does not round"),
        ("float32", ("quantization",), "without rollout.engine_args (quantization); if the engine agrees then"),
        ("bfloat16", (), "repeat the run with model.dtype=float32; if the engine agrees then, rounding is the cause"),
    ],
)
def test_verify_suggests_tolerance_only_for_rounding(dtype: str, engine_args: tuple[str, ...], advice: str) -> None:
    with pytest.raises(WeightSyncError) as caught:
        verify(Engine([-2.0] * 2), RIGHT, dtype, engine_args)
    assert advice in caught.value.action
    assert ("weight_check_tolerance=" in caught.value.action) is (dtype != "float32" or bool(engine_args))


def test_verify_reports_agreement_before_push() -> None:
    weights = sync(engine := Engine(RIGHT))
    weights.push(7)
    weights.verify()
    engine.probe = STALE
    weights.push(8)
    with pytest.raises(WeightSyncError, match=r"with version 8; with version 7 it agreed to 0 on average"):
        weights.verify()


@pytest.mark.parametrize("place", [0, 5, 11])
def test_trimmed_mean_keeps_nan(place: int) -> None:
    with pytest.raises(WeightSyncError, match="nan on average"):
        differ([0.0] * place + [math.nan] + [0.0] * (11 - place), "bfloat16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a tiny model's folder, its weights, and the weights after a short supervised start."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_model(TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1), 0, folder)
    model = load_model(folder, ModelConfig(path=str(folder)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    rows = probe_rows(np.random.default_rng(1), 16)
    for _ in range(20):
        logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return folder, before, model.state_dict()


def probe_rows(random: np.random.Generator, count: int) -> torch.Tensor:
    """Return [count, 32] tokens, each depending on the one before."""
    return torch.from_numpy((random.integers(0, 12, (count, 1)) + 5 * np.arange(32)) % 12 + 2)


def say_probe(folder: Path, state: dict[str, torch.Tensor], dtype: str, old_head: torch.Tensor | None) -> list[float]:
    """Return logprobs of the probe; `old_head`: the output layer kept these weights, though tied to the embedding."""
    model = load_model(folder, ModelConfig(path=str(folder), dtype=dtype)).eval()
    model.load_state_dict(state)
    if old_head is not None:
        model.lm_head.weight = torch.nn.Parameter(old_head.to(model.dtype))
    row = probe_rows(np.random.default_rng(2), 1)[0].numpy()
    sequence = TrainSequence(token_ids=row, trained_from=1)
    [found] = RowReader(model, torch.device("cpu")).compute_logprobs([sequence], 1.0)
    return [float(value) for value in found]


@pytest.mark.parametrize("kept", ["", "model.layers.0.", "model.layers.1.", "head"])
def test_bfloat16_tolerance_passes_rounding_and_catches_old_layer(
    kept: str, trained: tuple[Path, dict[str, torch.Tensor], dict[str, torch.Tensor]]
) -> None:
    """Compare a bfloat16 policy with exact float32, the largest rounding difference of two implementations."""
    folder, before, after = trained
    held = {n: before[n] if kept and n.startswith(kept) else tensor for n, tensor in after.items()}
    old_head = before["lm_head.weight"] if kept == "head" else None
    engine = Engine(say_probe(folder, held, "float32", old_head))
    said = say_probe(folder, after, "bfloat16", None)
    if kept:
        with pytest.raises(WeightSyncError, match="rollout-0 must agree with the policy"):
            verify(engine, said, "bfloat16")
    else:
        assert verify(engine, said, "bfloat16") > 1e-4


def test_records_keep_every_bit_in_any_order() -> None:
    records, checksum = pack_weights(reversed(WEIGHTS.items()))
    assert checksum == pack_weights(WEIGHTS.items())[1] == checksum_of(records)
    back = {record.name: record.to_tensor() for record in records}
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in WEIGHTS.items())
