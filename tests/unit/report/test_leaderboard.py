from __future__ import annotations

import pytest

from slurm_rl.report.leaderboard import RankedRun, render_standings

RUNS = [
    RankedRun(
        str(n),
        {"algorithm.group_size": "16", "optim.lr": f"{n}e-5", "model.path": f"/shared/models/org/model-{n}"},
        0.5,
        "finished",
    )
    for n in range(3)
]


def test_a_terminal_has_short_keys_and_whole_lines() -> None:
    table = render_standings(RUNS, "accuracy.after.sampled", 80).splitlines()
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["#", "accuracy.after.sampled", "RUN", "group_size", "lr", "path", "STATE"]
    # Begin and end of a long value say which it is.
    assert [row.split()[5][-2:] for row in table[1:]] == ["-0", "-1", "-2"] and "…" in table[1]


def test_a_file_has_whole_keys_and_values() -> None:
    table = render_standings(RUNS, "accuracy.after.sampled").splitlines()
    assert "algorithm.group_size" in table[0] and "/shared/models/org/model-2" in table[3]


@pytest.mark.parametrize("width", [20, 40, 79])
def test_ever_more_keys_never_make_a_longer_line(width: int) -> None:
    many = [RankedRun("0", {f"section.key{n}": "value" * 5 for n in range(12)}, None, "running")]
    table = render_standings(many, "reward/mean", width).splitlines()
    assert max(map(len, table)) <= width
    assert width == 20 or table[1].endswith("running")
