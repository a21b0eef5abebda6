"""Resume checkpoints of other trainers; tests/train/external/test_layouts_sources.py checks the layouts."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from slurm_rl.config.external import LayoutName
from slurm_rl.plan.checkpoint_layouts import LAYOUTS, Found, newest_step_by_name
from tests.unit.plugins.external.layout_files import half, whole, write


def test_configurable_names_have_layouts() -> None:
    assert set(get_args(LayoutName)) == LAYOUTS.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_newest_complete_checkpoint_is_chosen(layout: str, tmp_path: Path) -> None:
    newest = LAYOUTS[layout].newest
    assert newest(tmp_path) is None, "an empty folder"
    assert newest(tmp_path / "absent") is None
    write(tmp_path, half(layout, 5))
    assert newest(tmp_path) is None, "killed in its first save"
    # 10 after 9: numeric order, not text order.
    for step in (5, 9, 10):
        write(tmp_path, whole(layout, step))
    write(tmp_path, half(layout, 15))
    found = newest(tmp_path)
    assert found is not None and found.step == 10 and (tmp_path / found.name).is_dir()


@pytest.mark.parametrize(
    ("layout", "change", "step"),
    [
        # The writer was killed between open and write of the tracker: verl's own `auto` fails.
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").write_text(""), 10),
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").unlink(), None),
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").write_text("5\n"), 5),
        ("openrlhf", lambda root: (root / "_actor/latest").write_text(""), None),
        ("openrlhf", lambda root: (root / "_actor/latest").write_text("global_step5"), 5),
        ("trl", lambda root: (root / "checkpoint-10/trainer_state.json").write_text('{"global'), 5),
        ("trl", lambda root: (root / "checkpoint-10/checkpoint-is-incomplete.txt").write_text("at step 10"), 5),
        ("prime_rl", lambda root: (root / "run/checkpoints/step_10/orchestrator/progress.pt").unlink(), 5),
        ("steps", lambda root: (root / "step-11").write_text("no folder"), 10),
    ],
)
def test_partial_and_copied_checkpoints_are_recognized(
    layout: str, change: Callable[[Path], object], step: int | None, tmp_path: Path
) -> None:
    for number in (5, 10):
        write(tmp_path, whole(layout, number))
    change(tmp_path)
    found = LAYOUTS[layout].newest(tmp_path)
    assert (found.step if found else None) == step


def test_openrlhf_single_model_layout_is_supported(tmp_path: Path) -> None:
    write(tmp_path, {"global_step4/x": "", "latest": "global_step4"})
    assert LAYOUTS["openrlhf"].newest(tmp_path) == Found("global_step4", 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_progress_counts_names_of_layouts(layout: str, tmp_path: Path) -> None:
    assert newest_step_by_name(tmp_path) == -1
    write(tmp_path, whole(layout, 7))
    write(tmp_path, {"other-9/x": "", "step-x/x": "", "checkpoint-12a/x": ""})
    assert newest_step_by_name(tmp_path) == 7
