"""Everything here needs a GPU that torch sees (CUDA or ROCm); elsewhere it is skipped, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if FOLDER in item.path.parents]
    if not mine:
        return
    import torch

    if not torch.cuda.is_available():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="torch sees no GPU"))
