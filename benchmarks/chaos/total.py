"""Combine the --log files of the parts of a long storm: `python -m benchmarks.chaos.total LOG...`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.chaos.findings import Hit, render_table
from benchmarks.chaos.judge import Outcome
from benchmarks.chaos.watch import Sign
from slurm_rl.run_dir.jsonl import Row, read_rows


def read_storm(rows: Iterable[Row]) -> tuple[list[Hit], list[Sign], Outcome, list[str]]:
    """Return hits, signs, numbers and violated guarantees."""
    hits, signs, outcome, broken = list[Hit](), list[Sign](), Outcome(0.0, 0.0, 0.0, 0, 0), list[str]()
    for row in rows:
        if "fields" in row:
            signs.append(Sign(**row))
        elif row["what"] == "fault":
            victim, lasts_s = row.get("victim", ""), row.get("lasts_s", 0.0)
            moment = float(row["moment"] if "moment" in row else row["time"])
            hits.append(Hit(moment, row["kind"], victim, lasts_s, row.get("missed", "")))
        elif row["what"] == "end":
            outcome = Outcome(**{name: row[name] for name in Outcome.__dataclass_fields__})
        elif row["what"] == "broken":
            broken.append(row["promise"])
    return hits, signs, outcome, broken


def render_total(storms: Sequence[Iterable[Row]]) -> str:
    """Render the table of all parts, their numbers in one sentence, and the violations."""
    read = [read_storm(rows) for rows in storms]
    outcomes = [outcome for _, _, outcome, _ in read]
    whole = Outcome(*(sum(getattr(one, name) for one in outcomes) for name in Outcome.__dataclass_fields__))
    missed = sum(bool(hit.missed) for hits, *_ in read for hit in hits)
    table = render_table((hits, signs) for hits, signs, *_ in read)
    broken = [promise for *_, those in read for promise in those]
    return "\n".join([table, whole.render(), f"{missed} faults met nobody", *broken])


if __name__ == "__main__":
    print(render_total([read_rows(Path(name)) for name in sys.argv[1:]]))
