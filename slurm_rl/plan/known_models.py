"""Shapes of models that many name, so that a plan can say what fits before anything is downloaded.

Numbers of each model's config.json on the hub, in known_models.csv; tests/unit/plan/test_known_models.py holds them
against the counts of parameters that the authors publish. Vision towers are counted, not described.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from slurm_rl.plan.memory import ModelShape


@functools.cache
def load_known() -> dict[str, ModelShape]:
    """Shape by the model's name on the hub, in lower case."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    known: dict[str, ModelShape] = {}
    for row in csv.DictReader(text.splitlines()):
        owner, names = row.pop("owner"), row.pop("names").split()
        is_tied = row.pop("is_tied") == "1"
        shape = ModelShape(is_tied=is_tied, **{key: int(value) for key, value in row.items()})
        known |= {f"{owner}/{name}".lower(): shape for name in names}
    return known


def find_known(name: str) -> ModelShape | None:
    """The shape of a model of the hub, by its name there, which has no upper and lower case.

    >>> shape = find_known("qwen/qwen3-8b")
    >>> shape and round(shape.num_parameters / 1e9, 1)
    8.2
    """
    return load_known().get(name.lower())
