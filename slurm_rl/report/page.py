"""The look of report.html. Everything is inline: the file opens without a network, and travels alone."""

from __future__ import annotations

from html import escape

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #667085; --rule: #e3e7ee; --hover: #1b233012;
  --c0: #2f6fde; --c1: #e07b1a; --c2: #1d9a6c; --c3: #b1489f; --c4: #c9a400; --c5: #98a1b0;
  --good: #1d7f4e; --bad: #c0362c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151c; --card: #191f29; --ink: #e6eaf1; --muted: #929cad; --rule: #2a3240; --hover: #ffffff14;
    --c0: #6ea4ff; --c1: #f5a04c; --c2: #4fc796; --c3: #df86d0; --c4: #e3c84a; --c5: #6d7889;
    --good: #58c98f; --bad: #f2847b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1240px; padding: 32px 24px 64px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { margin: 0; font-size: 26px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 36px 0 12px; font-size: 17px; }
h3 { margin: 0 0 6px; font-size: 14px; font-weight: 600; }
.sub { margin: 4px 0 20px; color: var(--muted); overflow-wrap: anywhere; }
.state { font-weight: 600; } .state.finished { color: var(--good); } .state.failed { color: var(--bad); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); }
.tiles .name { color: var(--muted); font-size: 13px; }
.tiles .value { font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
svg { display: block; width: 100%; height: auto; }
.chart text { fill: var(--muted); font: 14px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.chart .background, .chart .line { fill: none; }
.chart .axis .line { stroke: var(--rule); } .chart .axis.x .line { stroke: none; }
.chart .axis.y text { text-anchor: end; } .chart .axis.x text { text-anchor: middle; }
.chart .series .line { stroke-width: 2; stroke-linejoin: round; }
.chart .dot { opacity: 0; } .chart .dot:hover, .chart.marked .dot { opacity: 1; }
.chart.raw .color-0 .line { opacity: 0.3; stroke-width: 1.2; } .chart.raw .color-1 { stroke: var(--c0); }
.color-0 { fill: var(--c0); stroke: var(--c0); } .color-1 { fill: var(--c1); stroke: var(--c1); }
.color-2 { fill: var(--c2); stroke: var(--c2); } .color-3 { fill: var(--c3); stroke: var(--c3); }
.color-4 { fill: var(--c4); stroke: var(--c4); } .color-5 { fill: var(--c5); stroke: var(--c5); }
.scroll { overflow-x: auto; padding: 0; }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
th, td { padding: 7px 14px; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
tr:last-child td { border-bottom: 0; }
th { color: var(--muted); font-weight: 600; }
td.number, th.number { width: 1%; text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
td code { display: block; max-height: 16em; overflow-y: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { margin: 0; overflow-x: auto; }
"""


def render_page(title: str, sections: list[str]) -> str:
    """A whole document; `title` is plain text, the sections are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Should an escape ever be missed, the browser still runs and fetches nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def render_section(title: str, body: str) -> str:
    """A headed part; nothing when there is nothing to show."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def render_table(headings: list[str], rows: list[list[str]], *, number_columns: set[int]) -> str:
    """A table in a card; every cell is plain text, and kept as it was typed in the columns of text."""

    def cell(tag: str, column: int, text: str) -> str:
        if column in number_columns:
            return f'<{tag} class="number">{escape(text)}</{tag}>'
        return f"<{tag}><code>{escape(text)}</code></{tag}>" if tag == "td" else f"<{tag}>{escape(text)}</{tag}>"

    def line(tag: str, texts: list[str]) -> str:
        return "<tr>" + "".join(cell(tag, column, text) for column, text in enumerate(texts)) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="card scroll"><table>{line("th", headings)}{body}</table></div>'
