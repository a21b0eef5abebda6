import math
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.models.forward import build_noise, noisy_embeddings

WIDTH, ALPHA = 16, 5.0


def sequence(length: int, seed: int | None) -> TrainSequence:
    return TrainSequence(token_ids=np.arange(length), trained_from=1, noise_seed=seed)


def test_noise_is_bounded_by_length_and_width() -> None:
    noise = build_noise(build_packed_batch([sequence(4, 1), sequence(100, 2)]), WIDTH, ALPHA)
    assert noise.shape == (104, WIDTH)
    for part, length in ((noise[:4], 4), (noise[4:], 100)):
        bound = ALPHA / math.sqrt(length * WIDTH)
        assert 0.8 * bound < part.abs().max() <= bound


def test_noise_of_packed_sequence_equals_unpacked() -> None:
    packed = build_noise(build_packed_batch([sequence(4, 1), sequence(6, 2)]), WIDTH, ALPHA)
    alone = build_noise(build_packed_batch([sequence(6, 2)]), WIDTH, ALPHA)
    assert torch.equal(packed[4:], alone)


def test_noise_affects_only_tokens() -> None:
    embedding = nn.Embedding(8, WIDTH)
    module = SimpleNamespace(get_input_embeddings=lambda: embedding)
    batch = build_packed_batch([sequence(3, 1)])
    rows = torch.zeros(2, 4, dtype=torch.long)
    plain = embedding(rows)
    with noisy_embeddings(module, batch, torch.tensor([1, 2, 6]), ALPHA):
        changed = (embedding(rows) != plain).any(-1).flatten()
    assert changed.nonzero().flatten().tolist() == [1, 2, 6]
    assert torch.equal(embedding(rows), plain)


def test_missing_seeds_or_alpha_add_no_noise() -> None:
    embedding = nn.Embedding(8, WIDTH)
    module = SimpleNamespace(get_input_embeddings=lambda: embedding)
    rows = torch.zeros(1, 3, dtype=torch.long)
    for seed, alpha in ((None, ALPHA), (1, 0.0)):
        with noisy_embeddings(module, build_packed_batch([sequence(3, seed)]), torch.arange(3), alpha):
            assert torch.equal(embedding(rows), embedding.weight[rows])
