"""Compare planned memory of each phase with our engine as one rank of many, within 10 %."""

from typing import Any

import pytest

from tests.memory_table import ROWS, compare

# Widths of the models, with layers enough to tell blocks from the rest.
FEW_LAYERS: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("0.5B", 1, 2, 8192, {}),
    ("1.5B", 8, 4, 512, {"logprob_chunk_tokens": 512}),
    ("7B", 8, 2, 8192, {"gradient_checkpointing": False}),
    ("Qwen3-4B", 8, 3, 32768, {"offload": "optimizer"}),
    ("30B-A3B", 256, 3, 32768, {}),
    ("70B", 64, 3, 131072, {"context_parallel": 8}),
]
MORE_FEW_LAYERS: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("1.5B", 8, 2, 8192, {"logprob_chunk_tokens": None}),
    ("7B", 64, 2, 32768, {}),
    ("70B", 64, 4, 4096, {}),
    ("Qwen3-4B", 8, 3, 32768, {"gradient_checkpointing": False}),
    ("30B-A3B", 16, 3, 16384, {"gradient_checkpointing": False, "offload": "optimizer"}),
    ("8B", 16, 4, 131072, {"context_parallel": 4, "gradient_checkpointing": False}),
    ("Qwen3-4B", 16, 4, 131072, {"context_parallel": 16}),
    ("30B-A3B", 16, 3, 131072, {"context_parallel": 8}),
    ("gpt-oss-120b", 32, 4, 16384, {}),
    ("gpt-oss-120b", 32, 4, 8192, {"gradient_checkpointing": False}),
]


def require_close(found: dict[str, tuple[float, float]]) -> None:
    # 20 MB: buffers such as rotary positions.
    wrong = {phase: pair for phase, pair in found.items() if abs(pair[0] - pair[1]) > 0.1 * pair[1] + 0.02}
    assert not wrong, f"planned and found, GB: {wrong}"


@pytest.mark.parametrize(("name", "ranks", "layers", "tokens", "options"), FEW_LAYERS)
def test_phase_memory_matches_plan(name: str, ranks: int, layers: int, tokens: int, options: dict[str, Any]) -> None:
    require_close(compare(name, ranks, tokens, num_layers=layers, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "layers", "tokens", "options"), MORE_FEW_LAYERS)
def test_phase_memory_of_more_settings_matches_plan(
    name: str, ranks: int, layers: int, tokens: int, options: dict[str, Any]
) -> None:
    require_close(compare(name, ranks, tokens, num_layers=layers, **options))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "tokens", "context"), ROWS)
def test_phase_memory_of_full_model_matches_plan(name: str, ranks: int, tokens: int, context: int) -> None:
    require_close(compare(name, ranks, tokens, context_parallel=context))
