"""Compare planned memory of each phase with our engine as one rank of many, within 15 %."""

from typing import Any

import pytest

from tests.memory_table import ROWS, compare

# Model widths and vocabularies, with enough layers to distinguish blocks from the rest.
FEW_LAYERS: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("0.5B", 1, 2, 8192, {}),
    ("1.5B", 8, 2, 8192, {"logprob_chunk_tokens": None}),
    ("1.5B", 8, 4, 512, {"logprob_chunk_tokens": 512}),
    ("7B", 8, 2, 8192, {"gradient_checkpointing": False}),
    ("7B", 64, 2, 32768, {}),
    ("70B", 64, 4, 4096, {}),
]


def require_close(found: dict[str, tuple[float, float]]) -> None:
    # 20 MB: buffers such as rotary positions.
    wrong = {phase: pair for phase, pair in found.items() if abs(pair[0] - pair[1]) > 0.15 * pair[1] + 0.02}
    assert not wrong, f"planned and found, GB: {wrong}"


@pytest.mark.parametrize(("name", "ranks", "layers", "tokens", "options"), FEW_LAYERS)
def test_phase_memory_matches_plan(name: str, ranks: int, layers: int, tokens: int, options: dict[str, Any]) -> None:
    require_close(compare(name, ranks, tokens, num_layers=layers, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), ROWS)
def test_phase_memory_of_full_model_matches_plan(name: str, ranks: int) -> None:
    require_close(compare(name, ranks, 8192))
