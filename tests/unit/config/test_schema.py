import math
from typing import get_args, get_type_hints

import pytest
from pydantic import ValidationError

from slurm_rl.config.parallel import ParallelDims, build_parallel_dims, require_divisible_heads
from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from slurm_rl.config.train import PolicyConfig
from slurm_rl.errors import ConfigError


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
    assert dims.num_ranks == num_ranks


def test_parallel_dims_that_do_not_divide_ranks_are_refused() -> None:
    assert build_parallel_dims(PolicyConfig(num_replicas=2), 8) == ParallelDims(2, 4)
    assert build_parallel_dims(PolicyConfig(num_replicas=2, context_parallel=2), 8) == ParallelDims(2, 2, 2)
    with pytest.raises(ConfigError, match=r"must divide the number of policy workers; got 2 \* 2 with 6 workers"):
        build_parallel_dims(PolicyConfig(num_replicas=2, context_parallel=2), 6)


@pytest.mark.parametrize(("context", "kv_heads"), [(8, 2), (2, 8), (4, 4), (1, 3)])
def test_context_ranks_may_share_or_repeat_heads(context: int, kv_heads: int) -> None:
    require_divisible_heads(context, 8, kv_heads)


@pytest.mark.parametrize(("context", "heads", "kv_heads"), [(3, 8, 8), (16, 8, 8), (4, 12, 6)])
def test_heads_that_context_ranks_cannot_share_are_refused(context: int, heads: int, kv_heads: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"got {heads} and {kv_heads} heads over {context} ranks.*choose one of 1, 2"
    ):
        require_divisible_heads(context, heads, kv_heads)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"num_replicas": 2, "backend": "deepspeed"}, "num_replicas needs policy.backend=fsdp2; got num_replicas=2"),
        ({"context_parallel": 2, "backend": "deepspeed"}, "excludes policy.backend=deepspeed; got context_parallel=2"),
        ({"context_parallel": 4, "prefix_sharing": True}, "excludes policy.prefix_sharing; got context_parallel=4"),
    ],
)
def test_meshes_of_other_backends_are_refused(fields: dict[str, object], seen: str) -> None:
    with pytest.raises(ValidationError, match=f"{seen}.*Next: "):
        PolicyConfig.model_validate(fields)
    PolicyConfig.model_validate({**fields, "num_replicas": 1, "context_parallel": "auto"})
