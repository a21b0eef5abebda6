from __future__ import annotations

from xml.etree import ElementTree

import pytest

from slurm_rl.plugins.report.leaderboard import RankedRun
from slurm_rl.plugins.report.parallel import MAX_AXES, MAX_MARKS, draw_parallel, make_axis

EVIL = "</svg><script>alert(1)</script>"


def ranked(run: str, value: float | None, **overrides: str) -> RankedRun:
    return RankedRun(run, overrides, value, "finished")


def read(svg: str) -> tuple[list[str], list[str], list[str]]:
    """Tips of the lines, names of the axes, and the values beside them."""
    root = ElementTree.fromstring(svg)
    tips = [path[0].text or "" for path in root.iter("path")]
    names = [node for node in root.iter("text") if node.get("class") == "name"]
    values = [node.text or "" for node in root.iter("text") if node.get("class") != "name"]
    return tips, [node.text or "" for node in names], values


def test_each_run_is_a_line_over_the_swept_keys_to_its_value_the_best_on_top() -> None:
    runs = [ranked("2", 0.5, lr="1e-4", algorithm="dapo"), ranked("0", 0.25, lr="1e-5", algorithm="rloo")]
    tips, names, values = read(draw_parallel(runs, "reward/mean"))
    assert tips == [
        "run 0: reward/mean 0.25; lr 1e-5, algorithm rloo; finished",
        "run 2: reward/mean 0.5; lr 1e-4, algorithm dapo; finished",
    ]
    assert names == ["lr", "algorithm", "reward/mean"]
    assert {"1e-5", "1e-4", "dapo", "rloo", "0.25", "0.5"} <= set(values)


def test_the_line_of_the_best_ends_highest_and_has_the_whole_colour() -> None:
    runs = [ranked(str(n), 1 - n / 4, lr=str(n)) for n in range(4)]
    paths = list(ElementTree.fromstring(draw_parallel(runs, "m")).iter("path"))
    ends = [float((path.get("d") or "").rpartition(",")[2]) for path in paths]
    assert ends == sorted(ends, reverse=True) and paths[-1].get("class") == "run best"
    assert [path.get("style") for path in paths] == ["--share:0%", "--share:33%", "--share:67%", "--share:100%"]


def test_where_less_is_better_the_lowest_is_the_best() -> None:
    paths = list(
        ElementTree.fromstring(draw_parallel([ranked("1", 0.1, x="1"), ranked("0", 9.0, x="2")], "loss")).iter("path")
    )
    assert [path.get("style") for path in paths] == ["--share:0%", "--share:100%"]


def test_a_run_without_a_value_ends_before_the_metric() -> None:
    svg = draw_parallel([ranked("1", 0.5, lr="1"), ranked("0", None, lr="2")], "m")
    open_run, done = ElementTree.fromstring(svg).iter("path")
    assert open_run.get("class") == "run open" and open_run[0].text == "run 0: m no value; lr 2; finished"
    assert (open_run.get("d") or "").count("L") == (done.get("d") or "").count("L") - 1


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw_parallel([], "m") == draw_parallel([ranked("0", None, lr="1")], "m") == ""
    assert draw_parallel([ranked("0", 0.5)], "m") == ""


def test_many_numbers_lie_on_a_logarithmic_scale_and_words_keep_their_order() -> None:
    many = [f"{10 ** (-5 + n / 8):.3g}" for n in range(17)]
    assert len(many) > MAX_MARKS
    axis = make_axis("lr", many)
    assert axis.shares[many[8]] == pytest.approx(0.5, abs=0.01) and len(axis.marks) == 5
    few = make_axis("lr", ["10", "9", "1000"])
    assert few.shares == {"9": 0.0, "10": 0.5, "1000": 1.0}
    words = make_axis("data", [f"set{n}" for n in range(30)])
    assert list(words.shares) == [f"set{n}" for n in range(30)] and len(words.marks) <= MAX_MARKS


@pytest.mark.parametrize("value", ["nan", "inf", "", EVIL, "[a,b]", "0", "-1"])
def test_any_word_is_a_value_and_none_is_markup(value: str) -> None:
    svg = draw_parallel([ranked("1", 0.5, k=value), ranked("0", 0.5, k="1e-3")], EVIL)
    root = ElementTree.fromstring(svg)
    assert {node.tag for node in root.iter()} <= {"svg", "g", "path", "line", "text", "title"}
    assert "NaN" not in svg and "nan," not in svg


def test_a_thousand_runs_of_many_keys_stay_a_small_picture() -> None:
    runs = [ranked(str(n), n / 1000, **{f"key{k}": str(n % (k + 2)) for k in range(20)}) for n in range(1000)]
    svg = draw_parallel(runs, "m")
    assert len(svg) < 1_000_000
    assert len(read(svg)[1]) == MAX_AXES + 1
