from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from slurm_rl.models import offload
from slurm_rl.models.offload import CopyLanes, HostMoments

SIZES = [(7, 3), (20,), (4, 4), (9,), (2, 5)]


def build(seed: int) -> tuple[list[torch.nn.Parameter], torch.optim.AdamW]:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]
    return parameters, torch.optim.AdamW(
        [{"params": parameters[::2], "weight_decay": 0.1}, {"params": parameters[1::2], "weight_decay": 0.0}],
        lr=0.1,
        fused=True,
    )


def set_gradients(parameters: list[torch.nn.Parameter], step: int) -> None:
    """Set some gradients; not all parameters have one in every step."""
    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(100 * step + number)
        skipped = number == step % len(parameters)
        parameter.grad = None if skipped else torch.randn(parameter.shape, generator=generator)


def test_host_updates_are_bit_equal_and_hold_one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_BUCKET", 30)
    plain, reference = build(0)
    parked, optimizer = build(0)
    moments = HostMoments(optimizer, torch.device("cpu"))
    at_once: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: at_once.append(sum(p.numel() for p in parked if p.grad is not None)))
    places = []
    for step in range(4):
        set_gradients(plain, step)
        set_gradients(parked, step)
        reference.step()
        moments.step()
        assert all(parameter.grad is None for parameter in parked)
        places.append({id(p): optimizer.state[p]["exp_avg"].data_ptr() for p in parked if p in optimizer.state})
        for one, other in zip(parked, plain, strict=True):
            assert torch.equal(one, other)
            for key, value in reference.state[other].items():
                assert torch.equal(value, optimizer.state[one][key])
    assert max(at_once) <= 30 < sum(p.numel() for p in parked) and len(at_once) > 4
    assert places[1].items() <= places[2].items() and places[2] == places[3]


class FakeStream:
    """Replace torch.cuda.Stream and record which stream waits for which event."""

    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name, self.num_events = said, name, 0

    def wait_stream(self, other: FakeStream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> FakeStream:
        event = FakeStream(self.said, f"bucket {self.num_events}")
        self.num_events += 1
        return event

    def synchronize(self) -> None:
        self.said.append(f"host waits for {self.name}")


def test_gpu_updates_overlap_both_copies_with_two_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recorder replaces torch.cuda; the copies run on CPU."""
    said: list[str] = []
    names = iter(["incoming", "outgoing"])

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        said.append(f"on {stream.name}")
        yield

    monkeypatch.setattr(offload, "_BUCKET", 30)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream(said, next(names)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream(said, "compute"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    parameters, optimizer = build(0)
    moments = HostMoments(optimizer, torch.device("cpu"), CopyLanes(torch.device("cpu")))
    optimizer.register_step_pre_hook(lambda *_: said.append("update"))
    turn = ["compute waits for incoming", "update", "outgoing waits for compute", "on outgoing"]
    for first in (0, 3):  # three buckets per step
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        said.clear()
        moments.step()
        assert said == [
            *["on incoming", *turn],
            *["on incoming", *turn],
            *[f"host waits for bucket {first}", "on incoming", *turn],
            "host waits for outgoing",
        ]
