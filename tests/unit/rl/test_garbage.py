"""The driver runs the cycle collector after each step, and not during it."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_rl.trainers.grpo.trainer import collect_rarely, collect_step


@pytest.fixture(autouse=True)
def rarely() -> Iterator[None]:
    before = gc.get_threshold()
    collect_rarely()
    gc.collect()
    yield
    gc.set_threshold(*before)


class Node:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_of_step_are_collected() -> None:
    left = weakref.ref(Node())
    assert left() is not None
    collect_step()
    assert left() is None


def test_long_lived_lists_are_not_scanned() -> None:
    begun: list[str] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        begun.append(phase)

    gc.callbacks.append(note)
    try:
        under_way = [[number] for number in range(50_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(under_way) == 50_000 and not begun
