from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.parallel import ParallelDims
from slurm_rl.data.split import RowCounts
from slurm_rl.errors import DataError
from slurm_rl.models.meshes import Meshes
from slurm_rl.run_dir.run_dir import RunDir
from slurm_rl.trainers.supervised.objective import Example, Objective, add_cached_logprobs, make_sequence
from slurm_rl.trainers.supervised.run_supervised import check_same_examples


@dataclass
class Engine:
    """An engine that returns tokens as logprobs."""

    num_calls: int = 0
    rows: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(packed=True))
    meshes: Meshes = field(default_factory=lambda: Meshes(ParallelDims(1, 1), rank=0))

    def compute_logprobs(self, batches: list[list[TrainSequence]]) -> list[FloatArray]:
        self.num_calls += 1
        return [[s.token_ids[s.trained].astype(np.float32) for s in batch] for batch in batches]  # type: ignore[misc]


def pair(*tokens: int) -> Example:
    return Example(tuple(make_sequence(np.array([1, 2, token]), np.array([2])) for token in tokens))


ROWS = [pair(5, 6), pair(7, 8), pair(9, 10)]
OTHERS = [[ROWS[1], ROWS[0], ROWS[2]], [pair(5, 6), pair(7, 8), pair(9, 11)], [pair(6, 5), *ROWS[1:]]]
"""All with equal numbers of tokens."""


def logprobs_of(examples: list[Example]) -> list[list[float]]:
    return [[float(s.ref_logprobs[0]) for s in example.sequences] for example in examples]  # type: ignore[index]


def test_reference_is_computed_once(tmp_path: Path) -> None:
    engine: Any = Engine()
    for _ in range(3):
        found = add_cached_logprobs(ROWS, engine, 64, tmp_path / "reference")
        assert logprobs_of(found) == [[5, 6], [7, 8], [9, 10]]
    assert engine.num_calls == 1


@pytest.mark.parametrize("rows", OTHERS)
def test_other_rows_of_same_lengths_have_own_logprobs(rows: list[Example], tmp_path: Path) -> None:
    engine: Any = Engine()
    add_cached_logprobs(ROWS, engine, 64, tmp_path / "reference")
    found = add_cached_logprobs(rows, engine, 64, tmp_path / "reference")
    assert logprobs_of(found) == [[float(s.token_ids[2]) for s in row.sequences] for row in rows]
    assert engine.num_calls == 2


@pytest.mark.parametrize("rows", [*OTHERS, ROWS[:2]])
def test_supervised_run_resumes_only_with_its_rows(rows: list[Example], tmp_path: Path) -> None:
    nothing: Any = None
    counts = RowCounts(train=2, held_out=1, overlapping=0, overlong=0)

    def check(examples: list[Example]) -> None:
        objective = Objective(examples[:2], examples[2:], counts, build_loss=nothing, build_eval_loss=nothing)
        check_same_examples(RunDir(tmp_path), objective)

    check(ROWS)
    check(ROWS)
    with pytest.raises(DataError, match=r"in place of 2 \+ 1 rows"):
        check(rows)
