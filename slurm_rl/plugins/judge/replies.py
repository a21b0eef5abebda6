"""Verdicts by the content of their requests. A resumed run reads the replies again and so repeats its rewards."""

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

from slurm_rl.config.judge import JudgeConfig
from slurm_rl.plugins.judge.verdict import Verdict, read_verdict
from slurm_rl.run_dir.io_errors import log_to_stderr
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.judge_total import read_judge_total
from slurm_rl.run_dir.run_dir import RunDir, append_row

_KEYS = {"key", "text", "end", "input", "output"}
# Judges of several sources write to one file, each from its own thread.
_writing = threading.Lock()
_totals: dict[Path, dict[str, Any]] = {}
"""Total of the run in each file, over attempts and judges."""


class Replies:
    """Cache in judge.jsonl, whose lines also have the run's total; memory holds only the verdicts."""

    def __init__(self, run: RunDir, config: JudgeConfig) -> None:
        self._run, self._config = run, config
        rows = [row for row in read_rows(run.judge) if row.keys() >= _KEYS]
        # A reply in use stays: a later line of the same key was written by another judge of the run.
        self._verdicts = {row["key"]: read_verdict(config, row) for row in reversed(rows)}
        self._is_broken = False
        with _writing:
            _totals[run.judge] = read_judge_total(run) or {"replies": 0, "cost": 0.0}

    def get(self, key: str) -> Verdict | None:
        return self._verdicts.get(key)

    def put(self, key: str, reply: dict[str, Any]) -> Verdict:
        """Return the verdict of a reply, which a later attempt will find; a full disk is only a warning."""
        verdict = self._verdicts[key] = read_verdict(self._config, reply)
        try:
            with _writing:
                append_row(self._run, self._run.judge, {"key": key, **reply, "total": self._add(verdict.cost)})
        except OSError as error:
            if not self._is_broken:
                log_to_stderr(f"replies of the judge are not kept for a resumed run: {error}")
            self._is_broken = True
        return verdict

    def _add(self, cost: float) -> dict[str, Any]:
        total = _totals[self._run.judge]
        total |= {"replies": total["replies"] + 1, "cost": round(total["cost"] + cost, 9)}
        return total


def content_key(*parts: Any) -> str:
    """Return the key of a request: a hash of everything that the reply depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
