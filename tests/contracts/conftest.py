"""Packages checked by the contract tests; see fetch.py and source.py."""

import importlib.util
from pathlib import Path

import pytest

from tests.contracts.fetch import open_pinned
from tests.contracts.source import Package


@pytest.fixture(scope="session")
def vllm() -> Package:
    """vLLM's CUDA build."""
    return Package(open_pinned("vllm"))


@pytest.fixture(scope="session")
def flash_attn() -> Package:
    return Package(open_pinned("flash-attn"))


@pytest.fixture(scope="session")
def installed() -> Package:
    """Packages installed here in the versions used on GPUs: transformers, DeepSpeed, Ray."""
    found = importlib.util.find_spec("transformers")
    assert found is not None and found.origin is not None
    return Package(Path(found.origin).parents[1])
