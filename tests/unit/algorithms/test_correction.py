import pytest
import torch

from slurm_rl.algorithms.losses import CorrectionInputs
from slurm_rl.config.registry import CORRECTIONS

RATIOS = [0.25, 0.5, 1.0, 2.0, 8.0]


def correct(
    name: str, log_ratio: torch.Tensor, low: float, high: float, lengths: list[int] | None = None
) -> list[float]:
    lengths = lengths or [len(log_ratio)]
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    inputs = CorrectionInputs(log_ratio=log_ratio, sequence_ids=ids, num_sequences=len(lengths), low=low, high=high)
    found = CORRECTIONS[name].load()(inputs)
    assert found.dtype == torch.float32 and found.isfinite().all() and (found >= 0).all()
    return found.tolist()


def test_token_tis_clips_only_large_ratios() -> None:
    assert correct("token_tis", torch.tensor(RATIOS).log(), 0.5, 4.0) == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0])


def test_icepop_drops_ratios_outside_bounds() -> None:
    assert correct("icepop", torch.tensor(RATIOS).log(), 0.4, 4.0) == pytest.approx([0.0, 0.5, 1.0, 2.0, 0.0])


@pytest.mark.parametrize(
    ("name", "low", "high", "weights"),
    [
        ("geometric_mask", 0.9, 1.2, (1.0, 0.0)),
        ("geometric_mask", 0.4, 1.1, (0.0, 1.0)),
        ("sequence_mask", 0.9, 2.1, (2.0, 0.0)),
        ("sequence_mask", 0.4, 1.9, (0.0, 0.5)),
        ("sequence_mask", 0.0, 1.9, (0.0, 0.5)),
    ],
)
def test_sequence_corrections_use_product_or_geometric_mean(
    name: str, low: float, high: float, weights: tuple[float, float]
) -> None:
    # The product of the five ratios is 2, their geometric mean 1.149. The second sequence has 0.5, the third no token.
    log_ratio, lengths = torch.tensor([*RATIOS, 0.5]).log(), [5, 1, 0]
    assert correct(name, log_ratio, low, high, lengths) == pytest.approx([weights[0]] * 5 + [weights[1]])


@pytest.mark.parametrize(
    ("num_tokens", "each", "product", "mean"),
    [(100, 0.05, 0.0, 1.0), (100, 0.005, 1.6487, 1.0), (400, -0.005, 0.0, 1.0)],
)
def test_sequence_mask_of_long_sequence_differs_from_geometric_mask(
    num_tokens: int, each: float, product: float, mean: float
) -> None:
    log_ratio = torch.full((num_tokens,), each)
    assert correct("sequence_mask", log_ratio, 0.5, 2.0)[0] == pytest.approx(product, abs=1e-4)
    assert correct("geometric_mask", log_ratio, 0.5, 2.0)[0] == mean


@pytest.mark.parametrize("name", CORRECTIONS)
def test_same_policy_has_unit_correction_without_overflow(name: str) -> None:
    assert correct(name, torch.zeros(3), 0.5, 2.0) == [1.0] * 3
    assert len(correct(name, torch.tensor([-1e4, 1e4]), 0.5, 2.0)) == 2
    assert correct(name, torch.zeros(0), 0.5, 2.0) == []
