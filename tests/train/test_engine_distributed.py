"""Two gloo workers in every layout compute the same as one plain worker.

One pair of processes runs all layouts in turn and writes the results to files: starting two processes with torch and
DeepSpeed per test would take longer than the tests.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, multiprocessing

from slurm_rl.algorithms.packing import distribute
from slurm_rl.algorithms.schedule import schedule_lr
from slurm_rl.algorithms.sequences import PackedBatch, TrainSequence
from slurm_rl.config.model import LoraConfig, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import BringUpError, CheckpointError, TrainingError
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.policy import PolicyEngine
from tests.tiny_models import build_tiny_model
from tests.train.conftest import SMALL
from tests.train.test_engine_policy import cross_entropy
from tests.unit.models.test_store_address import free_port

# With the default eps, Adam turns the rounding of a vanishing gradient into a step.
OPTIM = OptimConfig(lr=2e-3, weight_decay=0.1, max_grad_norm=0.5, eps=1e-6, warmup_steps=2, schedule="cosine")
OTHER_OPTIM = OptimConfig(lr=1e-3, betas=(0.5, 0.8), max_grad_norm=0.2, eps=1e-6)
NUM_STEPS, SAVED_AFTER, RESET_AFTER = 7, 3, 5
Reference = tuple[list[dict[str, float]], PolicyEngine]
"""Metrics of each step, and the engine after the last."""
ONE = PolicyConfig(num_threads=1)
FSDP2 = PolicyConfig(backend="fsdp2", num_workers=2, num_threads=1)
ZERO = [PolicyConfig(backend="deepspeed", zero_stage=stage, num_workers=2, num_threads=1) for stage in range(4)]
LORA = LoraConfig(rank=4, alpha=8.0)


def change(policy: PolicyConfig, **fields: object) -> PolicyConfig:
    return policy.model_copy(update=fields)


PLAIN = {"fsdp2": FSDP2} | {f"zero-{stage}": policy for stage, policy in enumerate(ZERO)}
SPARING = {
    "fsdp2-chunked": change(FSDP2, logprob_chunk_tokens=5),
    "zero-3-chunked": change(ZERO[3], logprob_chunk_tokens=5),
    "fsdp2-offload-optimizer": change(FSDP2, offload="optimizer"),
    "fsdp2-offload-all": change(FSDP2, offload="all"),
    "zero-2-offload-optimizer": change(ZERO[2], offload="optimizer"),
    "zero-3-offload-all": change(ZERO[3], offload="all"),
}
ADAPTED = {"fsdp2-lora": FSDP2, "zero-2-lora": ZERO[2], "zero-3-lora": ZERO[3]}
LAYOUTS = PLAIN | SPARING | ADAPTED
FAST = ("fsdp2", "zero-3", "fsdp2-lora")
"""Layouts in `make test`; the others, which combine these features, are slow."""


def build_sequences(step: int) -> list[TrainSequence]:
    """Build sequences: in odd steps with two temperatures, in even ones with the engine's."""
    random = np.random.default_rng(step)
    lengths = random.integers(3, 14, 5 + step)
    return [
        TrainSequence(
            token_ids=random.integers(2, 14, n),
            trained_from=int(random.integers(1, n)),
            weight=1 / 8,
            temperature=(0.6, 1.3)[place % 2] if step % 2 else None,
        )
        for place, n in enumerate(lengths)
    ]


def split_micro_batches(step: int, rank: int, num_workers: int) -> list[list[TrainSequence]]:
    """Return this rank's micro-batches: 2 to 4 of them, some empty."""
    sequences = build_sequences(step)
    dealt = distribute([len(s.token_ids) for s in sequences], num_workers, budget=16)
    return [[sequences[i] for i in members] for members in dealt[rank]]


def nan_on_rank_1(batch: PackedBatch, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, float]]:
    poison = torch.distributed.get_rank() == 1
    return (torch.sqrt(logprobs * 0) if poison else logprobs).sum(), {}


def run_steps(engine: PolicyEngine, steps: range, rank: int, num_workers: int) -> list[dict[str, float]]:
    metrics = []
    for step in steps:
        if step == RESET_AFTER:
            engine.backend.reset_optimizer(OTHER_OPTIM)
        lr = schedule_lr(OPTIM, step, NUM_STEPS)
        metrics.append(engine.train(split_micro_batches(step, rank, num_workers), cross_entropy, lr))
    return metrics


def build_engine(folder: Path, policy: PolicyConfig, **fields: Any) -> PolicyEngine:
    return PolicyEngine(folder, ModelConfig(path=str(folder), **fields), policy, OPTIM, temperature=0.8)


def run_worker(rank: int, port: int, root: Path, names: list[str]) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, timeout_s=300)
    for name in names:
        run_layout(rank, name, root / "model", root / name)
    if "fsdp2" in names:
        run_resharded(rank, root)
    leave_process_group()


def run_resharded(rank: int, root: Path) -> None:
    for num_saved in (1, 40):
        engine = build_engine(root / "model", FSDP2)
        engine.load(root / f"by-{num_saved}")
        found = run_steps(engine, range(SAVED_AFTER, NUM_STEPS), rank, 2)
        if rank == 0:
            (root / f"resharded-{num_saved}.json").write_text(json.dumps(found))


def run_layout(rank: int, name: str, model: Path, out: Path) -> None:
    """Train, save and resume; in plain layouts also expected failures, an optimizer reset and exports."""
    policy, lora = LAYOUTS[name], LORA if name in ADAPTED else None
    for folder in ("checkpoint", "last", "just-reset", "half"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    engine = build_engine(model, policy, lora=lora)
    found: dict[str, Any] = {"metrics": run_steps(engine, range(SAVED_AFTER), rank, 2)}
    engine.save(out / "checkpoint")
    if lora is not None:
        found["base"] = compute_logprobs_of(engine, rank, adapters=False)
    found["metrics"] += run_steps(engine, range(SAVED_AFTER, NUM_STEPS), rank, 2)
    found["logprobs"] = compute_logprobs_of(engine, rank)
    state, adapters = dict(engine.full_state()), dict(engine.adapter_state())
    found["state_names"] = sorted(state)
    if name in PLAIN:
        found["nan"] = catch(TrainingError, lambda: engine.train(split_micro_batches(0, rank, 2), nan_on_rank_1, 1e-3))
        found["nan_changed"] = [n for n, t in engine.full_state() if not torch.equal(t, state[n])]
        found["uneven"] = catch(TrainingError, lambda: engine.train([[]] * (rank + 1), cross_entropy, 1e-3))
    resumed = build_engine(model, policy, lora=lora)
    if name in PLAIN:
        run_steps(resumed, range(10, 11), rank, 2)  # its state before the load must not matter
    resumed.load(out / "checkpoint")
    found["resumed_metrics"] = run_steps(resumed, range(SAVED_AFTER, NUM_STEPS), rank, 2)
    found["resumed_differs"] = [n for n, t in resumed.full_state() if not torch.equal(t, state[n])]
    half = build_engine(model, policy, lora=lora, dtype="bfloat16")
    found["bfloat16"] = run_steps(half, range(2), rank, 2)
    found["bfloat16_dtypes"] = sorted({str(t.dtype) for _, t in half.full_state()})
    if name in PLAIN:
        found |= run_exports(rank, policy, resumed, half, model, out)
    if rank == 0:
        torch.save((state, adapters), out / "state.pt")
    (out / f"found-{rank}.json").write_text(json.dumps(found))


def run_exports(
    rank: int, policy: PolicyConfig, resumed: PolicyEngine, half: PolicyEngine, model: Path, out: Path
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for engine, export, saved in ((resumed, "export", "last"), (half, "half-export", "half")):
        engine.export(out / export)
        engine.save(out / saved)
    torch.distributed.barrier()
    half.load(out / "half")  # with the classes that DeepSpeed stores for bfloat16
    resumed.backend.reset_optimizer(OTHER_OPTIM)
    resumed.save(out / "just-reset")
    found["after_reset"] = run_steps(resumed, range(2), rank, 2)
    third = build_engine(model, policy)
    third.backend.reset_optimizer(OTHER_OPTIM)
    third.load(out / "just-reset")
    found["resumed_after_reset"] = run_steps(third, range(2), rank, 2)
    if rank == 0:
        add_code(out / "checkpoint", out / "planted")
    torch.distributed.barrier()
    found["planted"] = catch(CheckpointError, lambda: third.load(out / "planted"))
    third.layout |= {"backend": "deepspeed", "zero_stage": (policy.zero_stage + 1) % 4}
    found["other_layout"] = catch(CheckpointError, lambda: third.load(out / "checkpoint"))
    return found


def compute_logprobs_of(engine: PolicyEngine, rank: int, **options: Any) -> list[list[list[float]]]:
    return [[v.tolist() for v in part] for part in engine.compute_logprobs(split_micro_batches(0, rank, 2), **options)]


class Code:
    """An object that creates a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def add_code(checkpoint: Path, planted: Path) -> None:
    """Copy the checkpoint and add objects that would execute code when unpickled."""
    shutil.copytree(checkpoint, planted)
    for file in planted.rglob("*.pt"):
        torch.save({**torch.load(file, weights_only=False), "code": Code(planted / "ran")}, file)


def catch(kind: type[Exception], call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engine")
    build_tiny_model(SMALL, seed=0, folder=root / "model")
    save_sharded(root)
    multiprocessing.spawn(run_worker, args=(free_port(), root, list(FAST)), nprocs=2)
    return root


@pytest.fixture(scope="module")
def slow_layouts(root: Path) -> None:
    others = [name for name in LAYOUTS if name not in FAST]
    multiprocessing.spawn(run_worker, args=(free_port(), root, others), nprocs=2)


def each(layouts: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test with the result folder of each layout."""
    params = [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in layouts]
    return pytest.mark.parametrize("layout", params, indirect=True)


@pytest.fixture
def layout(request: pytest.FixtureRequest, root: Path) -> Path:
    if request.param not in FAST:
        request.getfixturevalue("slow_layouts")
    return root / str(request.param)


def save_sharded(root: Path) -> None:
    """Write the checkpoint of one worker, and the same sharded for 40 as torch does."""
    engine = build_engine(root / "model", ONE)
    run_steps(engine, range(SAVED_AFTER), 0, 1)
    one = root / "by-1"
    one.mkdir()
    engine.save(one)
    whole = torch.load(one / "rank-0.pt", weights_only=True)
    (folder := root / "by-40").mkdir()
    (folder / "layout.json").write_text(json.dumps(engine.layout | {"num_workers": 40}))
    for rank in range(40):
        torch.save(cut(whole, rank, 40), folder / f"rank-{rank}.pt")


def cut(value: Any, rank: int, num: int) -> Any:
    if isinstance(value, dict):
        return {key: cut(inner, rank, num) for key, inner in value.items()}
    if value.ndim == 0:
        return value
    parts = value.chunk(num)
    return parts[rank].clone() if rank < len(parts) else value[:0].clone()


@pytest.fixture(scope="module")
def references(root: Path) -> dict[bool, Reference]:
    """One plain worker on the same sequences, without (False) and with adapters."""
    engines = {bool(lora): build_engine(root / "model", ONE, lora=lora) for lora in (None, LORA)}
    return {key: (run_steps(engine, range(NUM_STEPS), 0, 1), engine) for key, engine in engines.items()}


def read_result(layout: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((layout / f"found-{rank}.json").read_text()))


@each(LAYOUTS)
def test_layout_equals_one_worker(layout: Path, references: dict[bool, Reference]) -> None:
    metrics, engine = references[layout.name in ADAPTED]
    check_metrics(read_result(layout, 0)["metrics"], metrics)
    assert read_result(layout, 0)["metrics"] == read_result(layout, 1)["metrics"]
    states = torch.load(layout / "state.pt", weights_only=True)
    for ours, wanted in zip(states, (dict(engine.full_state()), dict(engine.adapter_state())), strict=True):
        assert ours.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)
    check_logprobs(layout, "logprobs", engine)
    # Only rank 0 gets the whole state.
    assert "lm_head.weight" in read_result(layout, 0)["state_names"] and read_result(layout, 1)["state_names"] == []


def check_logprobs(layout: Path, key: str, engine: PolicyEngine) -> None:
    for rank in range(2):
        for ours, part in zip(read_result(layout, rank)[key], split_micro_batches(0, rank, 2), strict=True):
            [expected] = engine.compute_logprobs([part])
            for one, other in zip(ours, expected, strict=True):
                assert one == pytest.approx(other.tolist(), abs=1e-5)


@each(LAYOUTS)
def test_resumed_run_equals_uninterrupted_one(layout: Path) -> None:
    for rank in range(2):
        found = read_result(layout, rank)
        assert found["resumed_metrics"] == found["metrics"][SAVED_AFTER:]
        assert found["resumed_differs"] == []


@each(LAYOUTS)
def test_bfloat16_follows_float32(layout: Path) -> None:
    found = read_result(layout, 0)
    assert found["bfloat16_dtypes"] == ["torch.bfloat16"]
    for half, full in zip(found["bfloat16"], found["metrics"], strict=False):
        assert half["loss"] == pytest.approx(full["loss"], rel=0.02)
        assert half["grad_norm"] == pytest.approx(full["grad_norm"], rel=0.1)


@each(PLAIN)
def test_checkpoint_between_two_stages_resumes_with_fresh_moments(layout: Path) -> None:
    found = read_result(layout, 0)
    assert found["resumed_after_reset"] == found["after_reset"]


@each(PLAIN)
def test_both_ranks_raise_on_bad_gradients_and_checkpoints(layout: Path) -> None:
    for rank in range(2):
        found = read_result(layout, rank)
        assert "must be finite" in found["nan"] and found["nan_changed"] == []
        assert "same number of micro-batches; got [1, 2] by rank" in found["uneven"]
        assert "it was saved with" in found["other_layout"]
        assert "only tensors and plain values" in found["planted"]
    assert (layout / "planted").is_dir() and not (layout / "planted" / "ran").exists()


@each(PLAIN)
@pytest.mark.parametrize(
    ("saved", "exported", "dtype"), [("last", "export", "float32"), ("half", "half-export", "bfloat16")]
)
def test_converted_checkpoint_equals_export(
    saved: str, exported: str, dtype: str, layout: Path, root: Path, tmp_path: Path
) -> None:
    config = ModelConfig(path=str(root / "model"), dtype=dtype)
    convert_checkpoint(layout / saved, str(root / "model"), config, tmp_path / "converted", 10**5)
    one, other = (read_tensors(folder) for folder in (tmp_path / "converted", layout / exported))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    if dtype == "float32":
        state, _ = torch.load(layout / "state.pt", weights_only=True)
        loaded = build_engine(layout / exported, ONE).module.state_dict()
        assert state.keys() == loaded.keys()
        assert all(torch.equal(state[name], loaded[name]) for name in state)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def check_metrics(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for ours, other in zip(found, expected, strict=True):
        assert ours == pytest.approx(other, abs=1e-5, rel=1e-5)


def test_one_worker_resumes_from_two(root: Path, references: dict[bool, Reference]) -> None:
    engine = build_engine(root / "model", ONE)
    run_steps(engine, range(10, 11), 0, 1)  # its state before the load must not matter
    engine.load(root / "fsdp2" / "checkpoint")
    check_metrics(run_steps(engine, range(SAVED_AFTER, NUM_STEPS), 0, 1), references[False][0][SAVED_AFTER:])


@pytest.mark.parametrize("num_saved", [1, 40])
def test_two_workers_resume_from_others(num_saved: int, root: Path, references: dict[bool, Reference]) -> None:
    """Most of 40 workers hold nothing of a tensor with 14 rows."""
    found = json.loads((root / f"resharded-{num_saved}.json").read_text())
    check_metrics(found, references[False][0][SAVED_AFTER:])


def test_deepspeed_names_both_numbers_of_workers(root: Path) -> None:
    engine = build_engine(root / "model", ONE)
    engine.layout |= {"backend": "deepspeed", "zero_stage": 3}
    engine.backend.can_reshard = False
    with pytest.raises(CheckpointError, match=r"with the num_workers it was saved with \(2, now 1\)"):
        engine.load(root / "zero-3" / "checkpoint")


@pytest.mark.parametrize(
    ("policy", "dtype"), [(PolicyConfig(backend="deepspeed"), "float32"), (PolicyConfig(), "bfloat16")]
)
def test_missing_process_group_is_named(root: Path, policy: PolicyConfig, dtype: str) -> None:
    with pytest.raises(BringUpError, match=r"needs a process group.*Next: call"):
        build_engine(root / "model", policy, dtype=dtype)


def test_waiting_rank_names_itself() -> None:
    with pytest.raises(BringUpError, match=r"policy rank 1 of 2 must reach all ranks at 127\.0\.0\.1:\d+ within 1 s"):
        init_process_group(1, 2, "127.0.0.1", free_port(), timeout_s=1)


@each(ADAPTED)
def test_checkpoint_of_adapters_leaves_base_out(layout: Path) -> None:
    of_all = layout.with_name(layout.name.removesuffix("-lora"))
    full, small = (sum(f.stat().st_size for f in (at / "checkpoint").rglob("*rank*.pt")) for at in (of_all, layout))
    assert 0 < small < full


@each(ADAPTED)
def test_disabled_adapters_equal_base_in_every_layout(layout: Path, root: Path) -> None:
    check_logprobs(layout, "base", build_engine(root / "model", ONE))
