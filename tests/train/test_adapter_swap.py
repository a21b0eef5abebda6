"""vLLM's own adapters in a real engine equal the policy, family by family; the plan knows which families."""

from typing import Any

import pytest

from slurm_rl.plan.transfer import ADAPTED
from tests.train.conftest import run_script

SLOW = ("qwen2", "llama", "mistral", "gemma2", "gemma3_text", "granite", "phi3", "qwen3-in-two")
FAMILIES = ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.fixture(scope="module", params=FAMILIES)
def swapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("swap_script", tmp_path_factory.mktemp("swap"), request.param)


def test_tokens_agree_after_each_swap(swapped: dict[str, Any]) -> None:
    """Ranks and scales differ by layer. The completions' prompt is longer than a block of the cache, and the same."""
    assert len({one["first"] for one in swapped["versions"]}) == 4, "a swap changed nothing"
    for one in swapped["versions"]:
        assert len(set(one["checksums"])) == 1
        is_split = len(one["checksums"]) == 3  # of two ranks and the policy
        assert max(one["probe"], one["samples"]) < (1e-4 if is_split else 1e-5)
        assert one["again"]
        assert 0 < one["bytes"] < 2e6
    assert swapped["architecture"] in ADAPTED


def test_broken_swaps_change_tokens(swapped: dict[str, Any]) -> None:
    assert all(difference > 1e-2 for difference in swapped["broken"].values()), swapped["broken"]


def test_sync_raises_after_first_step_if_engine_ignores_adapter(swapped: dict[str, Any]) -> None:
    """B is zero in the first sync."""
    first, second = swapped["ignored"]
    assert first.startswith("differs by ")
    assert "must agree with the policy" in second and "with version 0 it agreed" in second
