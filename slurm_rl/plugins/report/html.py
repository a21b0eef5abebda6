"""Write report.html, one file that shows a run or a sweep in any state."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from slurm_rl.plugins.goodput.read import read_ledger
from slurm_rl.plugins.goodput.render import render_line, render_ratio, split
from slurm_rl.plugins.goodput.types import Ledger
from slurm_rl.plugins.report.charts import build_charts, compare_runs, format_number
from slurm_rl.plugins.report.episodes import transcribe
from slurm_rl.plugins.report.leaderboard import RankedRun, build_table, explain_missing
from slurm_rl.plugins.report.summary import describe_data, list_results, summarize_run
from slurm_rl.run_dir.eval_sets import describe_sets, read_metrics
from slurm_rl.run_dir.event_text import describe_event, read_config_text, read_events
from slurm_rl.run_dir.jsonl import Row, read_rows
from slurm_rl.run_dir.run_dir import RunDir, write_text

PAGE = Path(__file__).with_name("page.html")
"""Template with its style sheet, so that a report is one file and needs no network. Its content security policy blocks
scripts and requests, in case an escape is missing."""


def render_page(title: str, sections: list[str]) -> str:
    """Return a document; `title` is plain text, the sections are HTML."""
    page = Template(PAGE.read_text(encoding="utf-8"))
    return page.substitute(title=escape(title), sections="\n".join(section for section in sections if section))


def render_section(title: str, body: str) -> str:
    """Return a section with a heading; "" for an empty body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def render_table(headings: list[str], rows: list[list[str]], *, number_columns: set[int]) -> str:
    """Return a table; cells are plain text and keep their white space."""

    def cell(tag: str, column: int, text: str) -> str:
        if column in number_columns:
            return f'<{tag} class="number">{escape(text)}</{tag}>'
        return f"<{tag}><code>{escape(text)}</code></{tag}>" if tag == "td" else f"<{tag}>{escape(text)}</{tag}>"

    def line(tag: str, texts: list[str]) -> str:
        return "<tr>" + "".join(cell(tag, column, text) for column, text in enumerate(texts)) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="card scroll"><table>{line("th", headings)}{body}</table></div>'


_TILES = ("steps", "held-out", "accuracy", "reward", "tokens/s", "time")
"""Results in the header."""
SAMPLES_A_SIDE = 6
EVENTS_A_SIDE = 150
LONGEST_TEXT = 4000
BEST_RUNS = 5
"""Number of colors of the page."""


def write_report(run: RunDir) -> Path:
    """Write report.html from the files of the run directory, and return its path."""
    config, summary = read_config_text(run), summarize_run(run)
    sections = [
        render_header(summary),
        render_section("Evaluation sets", render_sets(summary["sets"])),
        render_section("Where the time went", render_goodput(read_ledger(run))),
        render_section("Curves, step by step", render_charts(build_charts(read_metrics(run)))),
        render_section("Completions, first and last", render_samples(read_rows(run.samples))),
        render_section("Events", render_events(read_events(run))),
        render_section("Config", f'<div class="card scroll"><pre>{escape(config)}</pre></div>' if config else ""),
    ]
    write_text(run.report, render_page(run.path.name, sections))
    return run.report


def write_sweep_report(path: Path, standings: Sequence[RankedRun], metric: str) -> Path:
    """Write report.html of a sweep: leaderboard with the swept values, and curves."""
    headings, *table = build_table(standings, metric)
    ledgers = [read_ledger(RunDir(path / standing.run)) for standing in standings]
    headings.append("GOODPUT")
    table = [
        [*row, render_ratio(ledger.goodput) if ledger else "-"] for row, ledger in zip(table, ledgers, strict=True)
    ]
    is_ranked = any(standing.value is not None for standing in standings)
    best = standings[:BEST_RUNS]
    named = {standing.label: read_metrics(RunDir(path / standing.run)) for standing in best}
    states = Counter(standing.state for standing in standings).most_common()
    counts = ", ".join(f"{number:,} {state}" for state, number in states)
    missing = None if is_ranked else explain_missing([RunDir(path / each.run) for each in standings], metric)
    about = f"runs: {counts} · metric: {metric}" + (f" · {missing}" if missing else "")
    title = f"Curves of the best {len(best)}" if is_ranked else f"Curves of {len(best)} runs"
    sections = [
        f'<header><h1>{escape(path.name)}</h1><p class="sub">{escape(about)}</p></header>',
        render_section("Runs, best first", render_table(headings, table, number_columns={0, 1})),
        render_section(f"{title}, step by step", render_charts(compare_runs(named))),
    ]
    report = RunDir(path).report
    write_text(report, render_page(path.name, sections))
    return report


def render_header(summary: dict[str, Any]) -> str:
    """Return name, state, model and the main numbers."""
    name, state, model = (escape(summary[key]) for key in ("name", "state", "model"))
    tiles = "".join(
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div></div>'
        for name, value in list_results(summary)
        if name.startswith(_TILES)
    )
    rows = f" · rows: {escape(text)}" if (text := describe_data(summary)) else ""
    warnings = "".join(f'<p class="warning">{escape(text)}</p>' for text in summary["warnings"])
    return (
        f'<header><h1>{name}</h1><p class="sub"><span class="state {state}">{state}</span> · model: {model} · '
        f'attempts: {summary["attempts"]}{rows}</p>{warnings}<div class="tiles">{tiles}</div></header>'
    )


def render_sets(sets: dict[str, Any]) -> str:
    """Return the table of the evaluation sets; "" without any."""
    table = [list(entry) for entry in describe_sets(sets)]
    return render_table(["set", "result"], table, number_columns=set()) if table else ""


def render_goodput(ledger: Ledger | None) -> str:
    """Return the sentence of the ledger and its shares; "" before the first attempt."""
    if ledger is None:
        return ""
    rows = [[f"{share:.1%}", text] for _, text, share in split(ledger) if share]
    return f'<p class="sub">{escape(render_line(ledger))}</p>' + render_table(["share", ""], rows, number_columns={0})


def render_charts(charts: Iterable[tuple[str, str]]) -> str:
    """Return the cards of the charts, given by title and SVG."""
    try:
        cards = "".join(f'<div class="card"><h3>{escape(title)}</h3>{svg}</div>' for title, svg in charts)
    except ModuleNotFoundError as missing:
        return f'<p class="sub">No curves: {escape(str(missing.name))} is missing. Next: pip install pygal</p>'
    return f'<div class="charts">{cards}</div>' if cards else ""


def render_samples(samples: list[Row]) -> str:
    """Return a few completions of the first and last steps; episodes with all turns, observations in brackets."""
    shown = _ends(samples, SAMPLES_A_SIDE)
    table = [
        [
            f"{sample.get('step', '')} {sample.get('set', '')}".rstrip(),
            _shorten(str(sample.get("prompt", ""))),
            _shorten(transcribe(sample)),
            _shorten(str(sample.get("answer", ""))),
            format_number(sample["reward"]) if isinstance(sample.get("reward"), (int, float)) else "",
        ]
        for sample in shown
    ]
    headings = ["step", "prompt", "completion", "answer", "reward"]
    return render_table(headings, table, number_columns={0, 4}) if table else ""


def render_events(events: list[Row]) -> str:
    """Return the events with seconds since the first one."""
    shown = _ends(events, EVENTS_A_SIDE)
    table = [[f"+{event['time'] - events[0]['time']:.1f} s", describe_event(event)] for event in shown]
    left_out = len(events) - len(shown)
    note = f'<p class="sub">{left_out:,} events in the middle are left out; see events.jsonl.</p>' if left_out else ""
    return render_table(["time", "event"], table, number_columns={0}) + note if table else ""


def _ends(rows: list[Row], num: int) -> list[Row]:
    """Return the first and the last `num` rows, each once."""
    return rows if len(rows) <= 2 * num else rows[:num] + rows[-num:]


def _shorten(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    return f"{text[:LONGEST_TEXT]}… ({more:,} more characters)" if more > 0 else text
