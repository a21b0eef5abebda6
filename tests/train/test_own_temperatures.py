"""Sequences with several temperatures in one row get the same numbers as in separate rows."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import PolicyConfig
from slurm_rl.models.forward import RowReader
from slurm_rl.models.frozen import FrozenModel
from tests.train.test_engine_policy import CPU, FAMILIES, build_engine, cross_entropy
from tests.train.test_shared_prompts import build_groups

TEMPERATURES = (0.5, 1.0, 1.6, 0.7)


def set_temperatures(sequences: Sequence[TrainSequence]) -> list[TrainSequence]:
    """Give each group of three its own temperature."""
    return [replace(one, temperature=TEMPERATURES[place // 3]) for place, one in enumerate(sequences)]


def compute_unpacked(model: torch.nn.Module, sequence: TrainSequence) -> tuple[Tensor, Tensor]:
    """Return logprobs and entropy of the plain model, without packing and our temperature scaling."""
    ids = torch.from_numpy(sequence.token_ids)
    log_p = torch.log_softmax(model(ids[None]).logits[0].float() / sequence.temperature, -1)[
        sequence.trained_from - 1 : -1
    ]
    chosen = log_p.gather(1, ids[sequence.trained_from :, None])[:, 0]
    return chosen, -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk_tokens", [None, 1, 5, 1000])
@pytest.mark.parametrize(
    ("attention", "prefix_sharing", "packed"),
    [("sdpa", False, True), ("sdpa", True, True), ("sdpa", False, False), ("varlen", False, True)],
)
def test_mixed_row_equals_separate_rows(
    attention: str, prefix_sharing: bool, packed: bool, chunk_tokens: int | None
) -> None:
    """Logprobs, entropies and every gradient of both."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES["qwen3"], attn_implementation=attention).float().train()
    sequences = set_temperatures(build_groups())
    expected = [compute_unpacked(model, one) for one in sequences]
    (sum(logprobs.sum() + 3 * entropy.sum() for logprobs, entropy in expected)).backward()  # type: ignore[union-attr]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    reader = RowReader(model, CPU, chunk_tokens=chunk_tokens, prefix_sharing=prefix_sharing, packed=packed)
    batch = reader.build_batch(sequences)
    logprobs, entropy = reader.forward(batch, 9.0, entropy_gradient=True)
    torch.testing.assert_close(logprobs, torch.cat([one for one, _ in expected]), rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, torch.cat([one for _, one in expected]), rtol=0, atol=1e-5)
    (logprobs.sum() + 3 * entropy.sum()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, gradients[name], rtol=1e-4, atol=1e-5 * float(gradients[name].abs().max()))


def test_policy_and_reference_use_temperature_of_each(folder: Path) -> None:
    engine, model = build_engine(folder, 9.0), ModelConfig(path=str(folder))
    reference = FrozenModel(folder, model, PolicyConfig(num_threads=1), 9.0, CPU)
    sequences = set_temperatures(build_groups())
    [by_policy], [by_reference] = engine.compute_logprobs([sequences]), reference.compute_logprobs([sequences])
    for place, one in enumerate(sequences):
        with torch.no_grad():
            expected = compute_unpacked(engine.module, one)[0].numpy()
        np.testing.assert_allclose(by_policy[place], expected, atol=1e-5)
        np.testing.assert_allclose(by_reference[place], expected, atol=1e-5)


def test_equal_temperatures_give_identical_bits(folder: Path) -> None:
    """Some micro-batches are empty."""
    one, other = build_engine(folder, 0.8), build_engine(folder, 9.0)
    for step in range(3):
        plain = build_groups(step)
        equal = [replace(sequence, temperature=0.8) for sequence in plain]
        found = [
            engine.train([part[:5], [], part[5:]], cross_entropy, 1e-2)
            for engine, part in ((one, plain), (other, equal))
        ]
        assert found[0] == found[1]
    for (_, tensor), (_, same) in zip(one.full_state(), other.full_state(), strict=True):
        assert torch.equal(tensor, same)
