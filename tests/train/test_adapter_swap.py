"""vLLM's own adapters in a real engine equal the policy, family by family; the plan knows which families."""

from typing import Any

import pytest

from slurm_rl.plan.transfer import ADAPTED
from tests.train.conftest import run_script

FAMILIES = ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "llama", "mistral"))]


@pytest.fixture(scope="module", params=FAMILIES)
def swapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("swap_script", tmp_path_factory.mktemp("swap"), request.param)


def test_tokens_agree_after_each_swap(swapped: dict[str, Any]) -> None:
    """Ranks and scales differ by layer; the prompt is the same, so old keys and values would show."""
    assert len({one["first"] for one in swapped["versions"]}) == 4, "a swap changed nothing"
    for one in swapped["versions"]:
        assert len(set(one["checksums"])) == 1
        assert max(one["probe"], one["samples"]) < 1e-5
        assert one["again"]
        assert 0 < one["bytes"] < 2e6
    assert swapped["architecture"] in ADAPTED
