"""Small MoE models get their weights through every transport; an engine that ignores them is detected."""

from typing import Any

import pytest

from tests.tiny_moe import FAMILIES as MIXTURES
from tests.train.conftest import run_script

FAMILIES = [name if name == "qwen3_moe" else pytest.param(name, marks=pytest.mark.slow) for name in MIXTURES]


@pytest.fixture(scope="module", params=FAMILIES)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("sync_script", tmp_path_factory.mktemp("sync"), request.param)


@pytest.mark.parametrize("transport", ["store", "gloo", "adapters"])
def test_experts_agree_after_each_sync(results: dict[str, Any], transport: str) -> None:
    assert len(results[transport]) == 3
    assert max(results[transport]) < 2e-6, "an engine computed with the experts of an earlier load"


@pytest.mark.parametrize("weights", ["whole", "adapters"])
def test_first_sync_raises_if_engine_ignores_weights(results: dict[str, Any], weights: str) -> None:
    assert "must agree with the policy" in results["unused"][weights]
    assert "these are the first weights that it got" in results["unused"][weights]
    assert "weight_check_tolerance=" not in results["unused"][weights].partition("Next: ")[2], (
        "rounding is not the cause"
    )
