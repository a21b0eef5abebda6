"""Shapes of popular models, so that a plan can estimate memory before a download.

known_models.csv has the class and the numbers of each model's config.json on the hub, `more` with those that few
models have, and the billions of parameters of the model card or paper, which tests/unit/plan/test_known_models.py
compares.
"""

import csv
import functools
from pathlib import Path
from typing import Any

from slurm_rl.plan.memory import ModelShape


@functools.cache
def load_known() -> dict[str, ModelShape]:
    """Return the shapes by lower-case hub name."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    known: dict[str, ModelShape] = {}
    for row in csv.DictReader(text.splitlines()):
        owner, names = row.pop("owner"), row.pop("names").split()
        is_tied, architecture = row.pop("is_tied") == "1", row.pop("architecture")
        more = dict(word.split("=") for word in row.pop("more").split())
        del row["billions"]
        sizes: dict[str, Any] = {key: int(value) for key, value in (row | more).items()}
        shape = ModelShape(is_tied=is_tied, architecture=architecture, **sizes)
        known |= dict.fromkeys((f"{owner}/{name}".lower() for name in names), shape)
    return known


def find_known(name: str) -> ModelShape | None:
    """Return the shape of a hub model, case-insensitively; None if unknown.

    >>> shape = find_known("qwen/qwen3-8b")
    >>> shape and round(shape.num_parameters / 1e9, 1)
    8.2
    """
    return load_known().get(name.lower())
