"""The proof after a sync, against engines that lie. Fakes stand for Ray actors; the real pair is in tests/train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from slurm_rl.errors import WeightSyncError
from slurm_rl.train.grpo.cluster import Actor
from slurm_rl.train.grpo.weight_sync import WeightSync
from slurm_rl.train.grpo.weights import HeldWeights, SentWeights, checksum, pack_weights
from slurm_rl.train.types import TokenPrompt

WEIGHTS = {"a": torch.arange(4.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}


class FakeCall:
    """`method.remote(...)` runs at once, and `.options(num_returns=2)` hands back both parts."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def remote(self, *args: Any) -> Any:
        return self.function(*args)

    def options(self, **_: Any) -> FakeCall:
        return self


class FakePolicy:
    def __init__(self) -> None:
        records = pack_weights(WEIGHTS.items())
        self.pack_state = FakeCall(
            lambda probe: (records, SentWeights(checksum(records), [-1.0] * (len(probe.token_ids) - 1)))
        )


class FakeEngine:
    def __init__(self, *, bytes_ok: bool = True, stale: bool = False, old_version: bool = False) -> None:
        def load(version: int, records: Any, probe: TokenPrompt) -> HeldWeights:
            sums = [checksum(records) if bytes_ok else "0" * 64]
            return HeldWeights(version - old_version, sums, [-2.5 if stale else -1.0] * (len(probe.token_ids) - 1))

        self.load_weights = FakeCall(load)


class FakeCluster:
    def gather(self, calls: Sequence[tuple[Actor, Any]], **_: Any) -> list[Any]:
        return [value for _, value in calls]


def sync(engine: FakeEngine) -> WeightSync:
    cluster: Any = FakeCluster()
    policy, engines = [Actor("policy-0", FakePolicy())], [Actor("rollout-0", engine)]
    return WeightSync(cluster, policy, engines, probe=TokenPrompt(token_ids=[1, 2, 3]), tolerance=1e-3, timeout_s=1)


def test_an_engine_that_agrees_passes() -> None:
    weights = sync(FakeEngine())
    weights.push(7)
    assert weights.verify() == 0.0


def test_who_samples_ahead_verifies_older_pushes_alone() -> None:
    weights = sync(FakeEngine(stale=True))
    weights.push(7)
    assert weights.verify(leave=1) == 0.0, "nothing was looked at yet"
    weights.push(8)
    with pytest.raises(WeightSyncError):
        weights.verify(leave=1)


@pytest.mark.parametrize("lie", [{"bytes_ok": False}, {"stale": True}, {"old_version": True}])
def test_an_engine_that_does_not_hold_the_weights_is_named(lie: dict[str, bool]) -> None:
    with pytest.raises(WeightSyncError, match="rollout-0"):
        weights = sync(FakeEngine(**lie))
        weights.push(7)
        weights.verify()


def test_records_carry_every_bit_and_order_does_not_matter() -> None:
    records = pack_weights(reversed(WEIGHTS.items()))
    assert checksum(records) == checksum(pack_weights(WEIGHTS.items()))
    back = {record.name: record.to_tensor() for record in records}
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in WEIGHTS.items())


def test_one_changed_bit_changes_the_checksum() -> None:
    changed = {**WEIGHTS, "a": WEIGHTS["a"] + torch.tensor([0, 0, 0, 1e-6])}
    assert checksum(pack_weights(changed.items())) != checksum(pack_weights(WEIGHTS.items()))
