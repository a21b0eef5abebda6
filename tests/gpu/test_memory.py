"""Memory of a policy step at the planner's sizes, as counted by torch, matches the plan."""

from pathlib import Path

import pytest

from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.conftest import Note
from tests.gpu.kit import smallest_gpu_gb, vendor
from tests.gpu.memory_step import measure
from tests.gpu.models import build_text


@pytest.mark.parametrize(("model", "name"), [("0.5b", "grpo, colocated"), ("1.5b", "grpo, colocated, 1.5b")])
def test_step_memory_matches_plan(model: str, name: str, tmp_path: Path, note: Note) -> None:
    folder = build_text(model, tmp_path / "model")
    words = fill(CASES[name].words, model=folder, rows=folder, folder=folder)
    found = measure([*device_overrides(vendor(), 1, smallest_gpu_gb()), *words])
    note(**found)
    assert 0 < found["measured_gb"] <= found["planned_gb"]
