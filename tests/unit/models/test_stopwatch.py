import pytest
import torch

from slurm_rl.models import stopwatch
from slurm_rl.models.stopwatch import Stopwatch, Yardstick


def test_yardstick_is_short_and_draws_no_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Stopwatch, "seconds", lambda watch: 0.02)
    state = torch.get_rng_state()
    yardstick = Yardstick(torch.device("cpu"))
    found = []
    for _ in range(100):
        yardstick.lay()
        found.append(yardstick.read())
        clock[0] += 0.25
    # 2 % of 25 s are 25 times 0.02 s.
    assert [one for one in found if one] == [0.02] * 25
    assert torch.equal(state, torch.get_rng_state())


def test_stopwatch_sums_measured_calls() -> None:
    watch = Stopwatch(torch.device("cpu"))
    seconds = [watch.seconds()]
    for _ in range(2):
        with watch:
            torch.ones(64, 64) @ torch.ones(64, 64)
        seconds.append(watch.seconds())
    assert 0 == seconds[0] < seconds[1] < seconds[2]
