import csv
from pathlib import Path

import pytest

from slurm_rl.config.model import ModelConfig
from slurm_rl.launch.runs.model_shape import find_shape, sees_images
from slurm_rl.plan import known_models
from slurm_rl.plan.known_models import find_known


def test_known_shapes_have_published_parameters() -> None:
    text = Path(known_models.__file__).with_suffix(".csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        shape = find_known(f"{row['owner']}/{row['names'].split()[0]}")
        assert shape is not None
        assert shape.num_parameters / 1e9 == pytest.approx(float(row["billions"]), rel=2e-3), row["names"]


def test_find_shape_uses_known_models_by_name() -> None:
    shape = find_shape(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct"))
    assert shape == find_known("qwen/qwen2.5-vl-3b-instruct") != None  # noqa: E711
    assert sees_images(ModelConfig(path="Qwen/Qwen2.5-VL-3B-Instruct")) is True
    assert sees_images(ModelConfig(path="Qwen/Qwen3-8B")) is False
    assert (find_shape(ModelConfig(path="some/body")), sees_images(ModelConfig(path="some/body"))) == (None, None)
