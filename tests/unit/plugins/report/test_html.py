import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from slurm_rl.plugins.report.charts import MAX_POINTS, bin_points, build_charts, draw_lines
from slurm_rl.plugins.report.html import write_report, write_sweep_report
from slurm_rl.plugins.report.leaderboard import RankedRun
from slurm_rl.run_dir.run_dir import RunDir

from .sample_run import START, fill, make_row, make_rows

EVIL = "</code></td><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"


class _Page(HTMLParser):
    """Collect tags, attributes and text; fail on a tag that is closed in the wrong order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == "meta" or self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(run: RunDir) -> _Page:
    text = write_report(run).read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(", text), "the page needs no network"
    return _Page(text)


def assert_harmless(page: _Page) -> None:
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_finished_run_shows_header_charts_events_and_config(finished_run: RunDir) -> None:
    page = read_page(finished_run)
    for expected in ("addition-1", "finished", "25.0% -> 75.0%", "12.5% -> 50.0%", "Reward", "Time of a step, seconds"):
        assert expected in page.text
    assert page.tags.count("svg") == 6 and not {"src", "href"} & {name for name, _ in page.attributes}
    assert "attempt ended: outcome finished, cause all steps done" in page.text
    assert "+21.5 s" in page.text
    assert "model:\n  path: org/some-model\nname: addition\n" in page.text


def test_text_from_run_is_escaped(finished_run: RunDir) -> None:
    fill(finished_run.samples, [{"step": 1, "prompt": EVIL, "completion": EVIL, "answer": EVIL, "reward": 0.5}])
    later = START + 1000
    fill(finished_run.events, [{"time": later, "kind": EVIL, "cause": EVIL}])
    fill(finished_run.events, [{"time": later, "kind": "attempt/ended", "outcome": f'x" onclick="alert(3)" {EVIL}'}])
    finished_run.config.write_text(f"model: {{path: '{EVIL}'}}\n", encoding="utf-8")
    page = read_page(finished_run)
    assert_harmless(page)
    # The three cells of the sample contain the unchanged text.
    assert page.text.count(EVIL) >= 3


def test_run_without_data_has_page(run: RunDir) -> None:
    page = read_page(run)
    assert "addition-1" in page.text and not {"svg", "table", "pre"} & set(page.tags)


def test_sweep_shows_leaderboard_and_curves_of_best_runs(tmp_path: Path) -> None:
    # Run 1 has not begun.
    for index in (0, 2, 3, 4, 5, 6, 7):
        fill(RunDir(tmp_path / str(index)).metrics, make_rows())
    standings = [RankedRun(str(index), {"optim.lr": EVIL}, 0.5 - index / 10, "finished") for index in range(8)]
    page = _Page(write_sweep_report(tmp_path, standings, "reward/mean").read_text(encoding="utf-8"))
    assert_harmless(page)
    # Once in each row of the table; cut in the legends.
    assert page.text.count(EVIL) == 8 and "0.4" in page.text
    # Accuracy has two charts, greedy and sampled; step time has a single run.
    assert page.tags.count("svg") == 6 and "Accuracy, greedy" in page.text
    labels = {text.partition(":")[0] for text in page.text if ": lr=" in text and not text.startswith("step")}
    assert labels == set("01234")
    assert "runs: 8 finished · metric: reward/mean" in page.text


def test_missing_pygal_names_install_command(finished_run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygal", None)
    page = read_page(finished_run)
    assert "svg" not in page.tags and "+21.5 s" in page.text
    assert any("pip install pygal" in text for text in page.text)


def test_first_and_last_samples_are_shown(finished_run: RunDir) -> None:
    samples = [{"step": n, "prompt": f"p{n}", "completion": "x" * 5000, "answer": "a", "reward": n} for n in range(40)]
    fill(finished_run.samples, samples)
    page = read_page(finished_run)
    shown = [text for text in page.text if re.fullmatch(r"p\d+", text)]
    assert shown == [f"p{n}" for n in (0, 1, 2, 3, 4, 5, 34, 35, 36, 37, 38, 39)]
    assert "x" * 4000 + "… (1,000 more characters)" in page.text


def tips(svg: str) -> list[str]:
    """Return tooltips of the data points, without those of the guides."""
    return [tip.text or "" for dot in ElementTree.fromstring(svg).findall(".//g[@class='dots']") for tip in dot[:1]]


def test_points_show_values() -> None:
    svg = draw_lines({"a": [(0, 0.0), (5, 1.0)], "b": [(5, 0.1 + 0.2)]})
    assert tips(svg) == ["step 0: a 0", "step 5: a 1", "step 5: b 0.3"]


@pytest.mark.parametrize("num", [2, 3, 4, 6])
def test_several_curves_have_legend(num: int) -> None:
    svg = ElementTree.fromstring(draw_lines({f"run {n}": [(1, 0.0), (2, n)] for n in range(num)}))
    (legends,) = svg.findall(".//g[@class='legends']")
    top = float(re.findall(r"[\d.]+", legends.attrib["transform"])[1])
    texts = list(legends.iter("text"))
    assert [text.text for text in texts] == [f"run {n}" for n in range(num)]
    height = float(svg.attrib["viewBox"].split()[3])
    assert max(top + float(text.attrib["y"]) for text in texts) < height


def test_long_curves_are_averaged_in_bins() -> None:
    binned = bin_points([(step, step % 2) for step in range(10 * MAX_POINTS)])
    assert binned == [(step, 0.5) for step in range(9, 10 * MAX_POINTS, 10)]


def test_only_measured_metrics_get_chart() -> None:
    titles = ["Reward", "Accuracy", "KL to the reference", "Warm-up loss", "Tokens a second", "Time of a step, seconds"]
    assert [title for title, _ in build_charts(make_rows())] == titles
    assert list(build_charts([])) == []
    assert [title for title, _ in build_charts([make_row(1, "grpo", **{"entropy/mean": 1.0})])] == ["Entropy"]


@pytest.mark.parametrize(
    "values",
    [[0.0], [7.0], [-2.0, -2.0], [1e-9, 3e9], [4e-14, 9e-14], [1.0, 1.0 + 1e-15], [0.0, 0.0], [-3e-20, 5e-20]],
)
def test_single_tiny_and_equal_values_are_drawn(values: list[float]) -> None:
    svg = draw_lines({"x": list(enumerate(map(float, values)))})
    assert not re.search(r"nan|inf\b", svg) and len(tips(svg)) == len(values)
    # Points, and the labels of the axis.
    assert svg.count("<circle") == len(values) and svg.count("<text") >= 2
