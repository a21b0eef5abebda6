import math
from typing import get_args, get_type_hints

import pytest
from pydantic import ValidationError

from slurm_rl.config.parallel import ParallelDims, build_parallel_dims
from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from slurm_rl.config.train import PolicyConfig


def sections(model: type[Section]) -> set[type[Section]]:
    """Return the model and every section below it."""
    hints = [hint for annotation in get_type_hints(model).values() for hint in (annotation, *get_args(annotation))]
    below = {hint for hint in hints if isinstance(hint, type) and issubclass(hint, Section)}
    return {model}.union(*map(sections, below))


def test_sections_refuse_infinite_and_nan_numbers() -> None:
    accepted = []
    for section in sections(RunConfig):
        for name, field in section.model_fields.items():
            hint = field.annotation
            for value in (math.inf, math.nan) if float in (hint, *get_args(hint)) else ():
                try:
                    section.model_validate({name: value})
                except ValidationError as error:
                    accepted += [] if any(item["loc"][:1] == (name,) for item in error.errors()) else [(section, name)]
                else:
                    accepted.append((section, name))
    assert accepted == []


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("backend", "stage", "is_sharded"), [("fsdp2", 0, True)] + [("deepspeed", s, s == 3) for s in range(4)]
)
def test_parallel_dims_shard_like_backend(num_ranks: int, backend: str, stage: int, is_sharded: bool) -> None:
    fields = {"backend": backend} | ({"zero_stage": stage} if backend == "deepspeed" else {})
    dims = build_parallel_dims(PolicyConfig.model_validate(fields), num_ranks)
    assert (dims.shard, dims.replicate) == ((num_ranks, 1) if is_sharded else (1, num_ranks))
    assert math.prod(dims.mesh_shape.values()) == num_ranks


def test_mesh_shape_has_dimensions_above_one() -> None:
    assert ParallelDims(2, 4, context=2).mesh_shape == {"replicate": 2, "shard": 4, "context": 2}
    assert ParallelDims(1, 1).mesh_shape == {"shard": 1}
