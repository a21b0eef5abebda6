"""The findings of many nodes in one table."""

from __future__ import annotations

import pytest

from slurm_rl.plugins.health.doctor.finding import Finding
from slurm_rl.plugins.health.doctor.table import is_well, render


def test_what_all_say_is_one_line_and_of_numbers_the_lowest() -> None:
    found = {
        f"n{node}": [
            Finding("driver", "ok", "570"),
            Finding("matmul", "ok", f"{600 + node} TFLOP/s", ">= 500", value=600 + node),
        ]
        for node in range(3)
    }
    _, driver, matmul = render(found).splitlines()
    assert driver.split() == ["ok", "driver", "all", "3", "570"]
    assert matmul.split() == ["ok", "matmul", "all", "3", "600", "TFLOP/s", ">=", "500"]
    assert is_well(found)


def test_what_is_wrong_stands_alone_with_its_hosts_and_what_to_do() -> None:
    good, bad = Finding("memlock", "ok", "unlimited"), Finding("memlock", "wrong", "64 KiB", "unlimited", "ulimit -l")
    found = {"n1": [good], "n2": [bad], "n3": [bad]}
    _, first, second, action = render(found).splitlines()
    assert first.split() == ["ok", "memlock", "n1", "unlimited"]
    assert second.split() == ["WRONG", "memlock", "n2", "n3", "64", "KiB", "unlimited"]
    assert action.split() == ["do:", "ulimit", "-l"]
    assert not is_well(found)


def test_a_node_without_an_answer_is_not_well_and_is_in_the_table() -> None:
    found = {"n1": [Finding("driver", "ok", "570")], "n2": [Finding("node", "wrong", "no word")]}
    assert not is_well(found)
    assert "n2" in render(found)


def test_what_was_not_looked_at_is_no_trouble() -> None:
    found = {"n1": [Finding("rdma", "unseen", "no device")]}
    assert is_well(found) and "-  rdma" in render(found)


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    long = "a long word after a long word " * 6
    finding = Finding("clocks", "wrong", long, "x" * 70, f"do this: {long}")
    table = render({"gpu-node-0001": [finding], "gpu-node-0002": [Finding("clocks", "ok", "fine")]}, width)
    assert max(map(len, table.splitlines())) <= width
    assert "".join(table.split()).count("x") == 70
    assert len(render({"n": [finding]}).splitlines()) < len(render({"n": [finding]}, width).splitlines())
