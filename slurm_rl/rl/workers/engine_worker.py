"""What every rank that trains does with its engine, whatever the model is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_rl.engine.policy import PolicyEngine
    from slurm_rl.engine.row_check import RowCheck


class EngineWorker:
    """The common half of `TrainWorker`."""

    engine: PolicyEngine

    def ready(self) -> bool:
        return True

    def check_rows(self) -> RowCheck:
        return self.engine.rows

    def save(self, folder: Path, background: bool) -> list[Path]:
        return self.engine.save(folder, background=background)

    def load(self, folder: Path) -> None:
        self.engine.load(folder)
