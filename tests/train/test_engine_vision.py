"""Images in the policy engine: packed or not, every sequence gets the numbers of transformers."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import multiprocessing

from slurm_rl.algorithms.mrope import build_rope_positions
from slurm_rl.algorithms.policy_loss import build_warmup_loss
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.model import VISION_FAMILIES, ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import DataError
from slurm_rl.models.convert import convert_checkpoint
from slurm_rl.models.distributed import init_process_group, leave_process_group
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import load_model
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.vision import ImageReader, load_image_reader
from tests.image_kit import build_sequence, write_image
from tests.tiny_models import TinyVL, build_tiny_model
from tests.unit.models.test_store_address import free_port

CPU = torch.device("cpu")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in VISION_FAMILIES if name != "qwen2_5_vl"]


@pytest.fixture(scope="module", params=["qwen2_5_vl", *SLOW])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vl") / request.param
    build_tiny_model(TinyVL(family=request.param), seed=0, folder=folder)
    return folder


@pytest.fixture(scope="module")
def reader(folder: Path) -> ImageReader:
    reader = load_image_reader(folder, ModelConfig(path=str(folder)))
    assert reader is not None
    return reader


@pytest.fixture(scope="module")
def sequences(reader: ImageReader, tmp_path_factory: pytest.TempPathFactory) -> list[TrainSequence]:
    """Sequences with two images, none, one, and none; with lengths that are packed together."""
    folder = tmp_path_factory.mktemp("images")
    wide, tall, small = (
        write_image(folder / f"{seed}.png", seed, *size) for seed, size in enumerate([(140, 60), (60, 170), (20, 30)])
    )
    return [
        build_sequence(reader, 1, [small, wide], 3, 5),
        build_sequence(reader, 2, [], 4, 9),
        build_sequence(reader, 3, [tall], 9, 3),
        build_sequence(reader, 4, [], 2, 1),
        build_sequence(reader, 5, [wide, wide], 1, 4),
    ]


def build_engine(folder: Path, *, chunk: int | None = None) -> PolicyEngine:
    return PolicyEngine(
        folder,
        ModelConfig(path=str(folder)),
        PolicyConfig(logprob_chunk_tokens=chunk),
        OptimConfig(lr=1e-3),
        temperature=1.0,
    )


def transformers_logprobs(folder: Path, reader: ImageReader, sequence: TrainSequence) -> FloatArray:
    """Run one sequence through the model as transformers does, which computes the positions."""
    model = load_model(folder, ModelConfig(path=str(folder))).eval()
    ids = torch.from_numpy(sequence.token_ids).unsqueeze(0)
    inputs = {}
    if sequence.images:
        pixels = [reader.read(span.source) for span in sequence.images]
        inputs = {
            "pixel_values": torch.cat([one.values for one in pixels]),
            "image_grid_thw": torch.tensor([one.grid for one in pixels]),
            "mm_token_type_ids": (ids == reader.image_token_id).int(),
        }
    with torch.no_grad():
        logits = model(input_ids=ids, **inputs).logits[0, :-1]
    chosen = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    return chosen[sequence.trained_from - 1 :].numpy()


@pytest.mark.parametrize("chunk", [None, 3])
def test_packed_logprobs_equal_transformers(
    folder: Path, reader: ImageReader, sequences: list[TrainSequence], chunk: int | None
) -> None:
    [packed] = build_engine(folder, chunk=chunk).compute_logprobs([sequences])
    for sequence, found in zip(sequences, packed, strict=True):
        np.testing.assert_allclose(found, transformers_logprobs(folder, reader, sequence), atol=1e-5)


def test_sampled_placeholder_is_token_not_image(
    folder: Path, reader: ImageReader, sequences: list[TrainSequence]
) -> None:
    """The reference combines the model's parts by hand; Qwen3-VL also adds images inside its blocks."""
    ids = sequences[2].token_ids.copy()
    ids[-2] = reader.image_token_id
    sequence = dataclasses.replace(sequences[2], token_ids=ids)
    [[packed, _]] = build_engine(folder).compute_logprobs([[sequence, sequences[0]]])
    assert np.isfinite(packed).all()
    if folder.name.startswith("qwen3_vl"):
        return
    model, [span] = load_model(folder, ModelConfig(path=str(folder))).eval(), sequence.images
    pixels = reader.read(span.source)
    _, height, width = pixels.grid
    positions = build_rope_positions(len(ids), [span.start], [(height // 2, width // 2)])
    with torch.no_grad():
        embedded = model.get_input_embeddings()(torch.from_numpy(ids))
        seen = model.model.get_image_features(pixels.values, torch.tensor([pixels.grid]), return_dict=True)
        embedded[span.start : span.start + span.num_tokens] = seen.pooler_output[0]
        hidden = model.model.language_model(
            inputs_embeds=embedded.unsqueeze(0), position_ids=torch.from_numpy(positions).unsqueeze(1)
        ).last_hidden_state
        logits = model.lm_head(hidden[0, :-1])
    expected = logits.log_softmax(-1).gather(-1, torch.from_numpy(ids)[1:, None])[:, 0]
    np.testing.assert_allclose(packed, expected[sequence.trained_from - 1 :].numpy(), atol=1e-5)


def test_changed_pixels_change_logprobs(
    folder: Path, reader: ImageReader, sequences: list[TrainSequence], tmp_path: Path
) -> None:
    """Otherwise a model that ignores images would pass the tests above."""
    [span] = sequences[2].images
    other = write_image(tmp_path / "other.png", 77, 60, 170)
    changed = TrainSequence(
        token_ids=sequences[2].token_ids,
        trained_from=sequences[2].trained_from,
        images=[type(span)(source=other, start=span.start, num_tokens=span.num_tokens)],
    )
    [[before, after]] = build_engine(folder).compute_logprobs([[sequences[2], changed]])
    assert np.abs(before - after).max() > 1e-3


def test_packing_does_not_change_step(folder: Path, sequences: list[TrainSequence]) -> None:
    """Also for text-only micro-batches, which send a blank image through the vision tower."""
    states = []
    for micro_batches in ([sequences], [[one] for one in reversed(sequences)]):
        engine = build_engine(folder)
        totals = engine.train(micro_batches, build_warmup_loss(), lr=1e-3)
        states.append((totals, dict(engine.full_state())))
    (one, packed), (many, apart) = states
    assert one["loss"] == pytest.approx(many["loss"], abs=1e-5)
    assert one["grad_norm"] == pytest.approx(many["grad_norm"], rel=1e-4)
    # AdamW's first step is lr times the sign of the gradient: noise may flip a gradient of nearly 0.
    differing = sum(int(((packed[name] - apart[name]).abs() > 1e-4).sum()) for name in packed)
    assert differing < 1e-3 * sum(tensor.numel() for tensor in packed.values())


def test_text_only_batch_runs_vision_tower(folder: Path, sequences: list[TrainSequence]) -> None:
    """Otherwise ranks with images would wait forever for the others to gather its shards."""
    engine = build_engine(folder)
    calls = []
    engine.module.model.visual.register_forward_hook(lambda *_: calls.append(1))
    engine.compute_logprobs([[sequences[1]], []])
    assert len(calls) == 2


def test_export_has_image_processor(folder: Path, reader: ImageReader, tmp_path: Path) -> None:
    build_engine(folder).export(tmp_path / "export")
    exported = load_image_reader(tmp_path / "export", ModelConfig(path="unused"))
    assert exported is not None
    assert exported.count_tokens((140, 60)) == reader.count_tokens((140, 60))
    load_model(tmp_path / "export", ModelConfig(path=str(tmp_path / "export")))


def test_converted_checkpoint_equals_trained_model(
    folder: Path, sequences: list[TrainSequence], tmp_path: Path
) -> None:
    engine = build_engine(folder)
    engine.train([sequences], build_warmup_loss(), lr=1e-3)
    (tmp_path / "policy").mkdir()
    engine.save(tmp_path / "policy")
    config = ModelConfig(path=str(folder))
    convert_checkpoint(tmp_path / "policy", str(folder), config, tmp_path / "out", max_shard_bytes=10**5)
    [[expected]], [[found]] = (
        which.compute_logprobs([sequences[:1]]) for which in (engine, build_engine(tmp_path / "out"))
    )
    np.testing.assert_array_equal(found, expected)


def test_max_pixels_bounds_tokens_of_image(folder: Path, reader: ImageReader) -> None:
    config = ModelConfig(path=str(folder), min_pixels=32 * 32, max_pixels=32 * 32 * 4)
    bounded = load_image_reader(folder, config)
    assert bounded is not None
    assert bounded.count_tokens((300, 300)) <= 4 < reader.count_tokens((300, 300))


def test_image_changed_after_encoding_is_refused(folder: Path, reader: ImageReader, tmp_path: Path) -> None:
    source = write_image(tmp_path / "image.png", 1, 60, 60)
    sequence = build_sequence(reader, 1, [source], 2, 2)
    write_image(tmp_path / "image.png", 1, 200, 60)
    model = load_model(folder, ModelConfig(path=str(folder)))
    with pytest.raises(DataError, match=r"must not change .*image\.png"):
        RowReader(model, CPU, images=reader).compute_logprobs([sequence], 1.0)


LAYOUTS = {
    "fsdp2": PolicyConfig(backend="fsdp2", num_workers=2, num_threads=1),
    "zero-3": PolicyConfig(backend="deepspeed", zero_stage=3, num_workers=2, num_threads=1),
}
NUM_STEPS = 3


def build_shares(root: Path) -> list[list[TrainSequence]]:
    """Return the sequences of each worker."""
    reader = load_image_reader(root / "model", ModelConfig(path="unused"))
    assert reader is not None
    wide, tall = str(root / "wide.png"), str(root / "tall.png")
    seeing = [build_sequence(reader, 1, [wide, tall], 3, 5), build_sequence(reader, 2, [tall], 2, 4)]
    return [seeing, [build_sequence(reader, 3, [], 4, 6), build_sequence(reader, 4, [], 3, 2)]]


def run_steps(root: Path, policy: PolicyConfig, micro_batches: list[list[TrainSequence]], dtype: str) -> list[float]:
    config = ModelConfig.model_validate({"path": str(root / "model"), "dtype": dtype, "gradient_checkpointing": True})
    engine = PolicyEngine(root / "model", config, policy, OptimConfig(lr=1e-3, eps=1e-6), temperature=1.0)
    return [engine.train(micro_batches, build_warmup_loss(), 1e-3)["loss"] for _ in range(NUM_STEPS)]


def run_worker(rank: int, port: int, root: Path) -> None:
    init_process_group(rank, 2, "127.0.0.1", port, timeout_s=120)
    sequences = [build_shares(root)[rank]]
    found = {
        f"{name} {dtype}": run_steps(root, policy, sequences, dtype)
        for name, policy in LAYOUTS.items()
        for dtype in ("float32", "bfloat16")
    }
    (root / f"found-{rank}.json").write_text(json.dumps(found))
    leave_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vision")
    build_tiny_model(TinyVL(), seed=0, folder=root / "model")
    write_image(root / "wide.png", 1, 140, 60)
    write_image(root / "tall.png", 2, 60, 110)
    run: Callable[..., object] = multiprocessing.spawn
    run(run_worker, args=(free_port(), root), nprocs=2)
    return root


@pytest.mark.slow
def test_layouts_give_losses_of_one_worker(root: Path) -> None:
    """Without a pass of the second worker, which has text only, through the vision tower, the first would wait."""
    expected = run_steps(root, PolicyConfig(num_threads=1), build_shares(root), "float32")
    assert expected[-1] < expected[0]
    for rank in range(2):
        found = json.loads((root / f"found-{rank}.json").read_text())
        for name, losses in found.items():
            # bfloat16 has about three digits.
            assert losses == pytest.approx(expected, rel=1e-4 if "float32" in name else 2e-2), name
