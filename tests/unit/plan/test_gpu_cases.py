from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plan.parse_shape import parse_shape
from tests.gpu.cases import CASES, device_overrides, fill
from tests.gpu.models import TEXT

LLAMA = {"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}


def shape_of(model: str | None) -> ModelShape | None:
    if model is None:
        return None
    sizes = vars(TEXT[model]) if model in TEXT else {**LLAMA, "num_hidden_layers": 24, "vocab_size": 128256}
    family = {"model_type": "qwen2" if model in TEXT else "llama", "tie_word_embeddings": model in TEXT}
    shape = parse_shape({**sizes, **family, "max_position_embeddings": 2048})
    assert shape is not None
    return shape


@pytest.mark.parametrize(("name", "vendor"), [*((name, "nvidia") for name in CASES), (next(iter(CASES)), "amd")])
def test_gpu_case_fits_80_gb(name: str, vendor: str, tmp_path: Path) -> None:
    case = CASES[name]
    words = fill(case.words, model=tmp_path, rows=tmp_path / "rows.jsonl", folder=tmp_path)
    config = load_config([*device_overrides(vendor, case.num_gpus, 80), *words])
    shape = shape_of(case.model)
    plan = build_plan(config, str(tmp_path / "run"), SubmitFacts("python", 8, "test", model_shape=shape))
    assert len({gpu for actor in plan.actors for gpu in actor.gpus}) == case.num_gpus
    assert plan.layout.unknown is None or shape is None


def test_wide_model_has_tensor_above_one_gib() -> None:
    assert TEXT["wide"].vocab_size * TEXT["wide"].hidden_size * 2 > 2**30
