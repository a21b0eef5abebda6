import math

import pytest
import torch
from torch import nn

from slurm_rl.algorithms.schedule import schedule_lr
from slurm_rl.config.train import OptimConfig
from slurm_rl.errors import TrainingError
from slurm_rl.models.backend import apply_config, build_optimizer, clip_gradients, set_lr


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 2, 2, 2, 2, 2]),
        ("linear", [1, 2, 2, 1.5, 1, 0.5]),
        ("cosine", [1, 2, 2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5)]),
    ],
)
def test_schedule_by_hand(schedule: str, expected: list[float]) -> None:
    config = OptimConfig(lr=2.0, warmup_steps=2, schedule=schedule)
    assert [schedule_lr(config, step, 6) for step in range(6)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_is_never_negative(schedule: str) -> None:
    config = OptimConfig(lr=2.0, warmup_steps=2, schedule=schedule)
    assert schedule_lr(config, 6, 6) == pytest.approx(0)
    assert schedule_lr(config, 60, 6) == pytest.approx(0)
    assert schedule_lr(OptimConfig(lr=2.0, warmup_steps=9, schedule=schedule), 5, 6) == pytest.approx(2.0 * 6 / 9)


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))


def test_norms_and_biases_do_not_decay() -> None:
    optimizer = build_optimizer(build_model(), OptimConfig(lr=0.5, weight_decay=0.1, eps=1e-6, betas=(0.8, 0.9)))
    matrices, vectors = optimizer.param_groups
    assert [p.ndim for p in matrices["params"]] == [2, 2]
    assert [p.ndim for p in vectors["params"]] == [1, 1, 1]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert all((g["lr"], g["eps"], g["betas"]) == (0.5, 1e-6, (0.8, 0.9)) for g in optimizer.param_groups)


def test_fused_update_equals_default_update() -> None:
    models = [build_model(), build_model()]
    models[1].load_state_dict(models[0].state_dict())
    config = OptimConfig(lr=0.1, weight_decay=0.1)
    optimizers = [
        build_optimizer(model, config, fused=fused) for model, fused in zip(models, (False, True), strict=True)
    ]
    for step in range(20):
        for model, optimizer in zip(models, optimizers, strict=True):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()
    for plain, fused in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(plain, fused, rtol=1e-6, atol=1e-6)


def test_config_and_lr_change_in_place() -> None:
    optimizer = build_optimizer(build_model(), OptimConfig())
    apply_config(optimizer, OptimConfig(weight_decay=0.3))
    set_lr(optimizer, 0.25)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
    assert [g["lr"] for g in optimizer.param_groups] == [0.25, 0.25]


def test_only_gradients_above_limit_are_clipped() -> None:
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients(parameters, max_norm=1.0) == pytest.approx(5.0)
    assert [float(p.grad) for p in parameters[:2] if p.grad is not None] == pytest.approx([0.6, 0.8])
    assert clip_gradients(parameters, max_norm=2.0) == pytest.approx(1.0)
    assert [float(p.grad) for p in parameters[:2] if p.grad is not None] == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_gradient_is_refused(bad: float) -> None:
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.tensor([1.0, bad])
    with pytest.raises(TrainingError, match=r"finite; got (nan|inf).*Next: resume"):
        clip_gradients([parameter], max_norm=1.0)
    assert parameter.grad[0] == 1.0
