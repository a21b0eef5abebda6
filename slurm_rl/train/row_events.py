"""What is told of models whose sequences get a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.run_dir import RunDir, append_event

if TYPE_CHECKING:
    from slurm_rl.engine.row_check import RowCheck


def tell_rows(run: RunDir, role: str, check: RowCheck) -> None:
    """One event where sequences of `role` are not packed, since that costs padding; none where they are."""
    if not check.packed:
        append_event(run, "trainer/not_packed", role=role, reason=check.reason)
