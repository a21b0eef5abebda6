"""The packages that contracts are held with; see fetch.py and source.py."""

import importlib.util
from pathlib import Path

import pytest

from tests.contracts.fetch import open_pinned
from tests.contracts.source import Package


@pytest.fixture(scope="session")
def vllm() -> Package:
    """vLLM's build for CUDA."""
    return Package(open_pinned("vllm"))


@pytest.fixture(scope="session")
def flash_attn() -> Package:
    return Package(open_pinned("flash-attn"))


@pytest.fixture(scope="session")
def installed() -> Package:
    """What is installed here in the version that GPUs get, too: transformers, DeepSpeed, Ray."""
    found = importlib.util.find_spec("transformers")
    assert found is not None and found.origin is not None
    return Package(Path(found.origin).parents[1])
