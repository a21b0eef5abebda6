import ast
import re

import pytest

from slurm_rl.run_dir.event_text import PHRASES, describe_event, read_events, render_event
from slurm_rl.run_dir.run_dir import RunDir
from tests.lock import ROOT

from .sample_run import fill


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"kind": "attempt/ended", "outcome": "node lost", "cause": "n3", "after_s": 1 / 3},
            "attempt ended: outcome node lost, cause n3, after_s 0.3333",
        ),
        ({"kind": "job/ended", "state": "finished", "cause": ""}, "job ended: state finished"),
        ({"kind": "spare/used", "node": "n7"}, "spare/used: node n7"),
    ],
)
def test_describe_event_has_words_and_details(event: dict[str, object], text: str) -> None:
    assert describe_event({"time": 1.0, **event}) == text


def test_event_stays_on_one_line_whatever_its_cause_holds() -> None:
    line = render_event({"time": 0.0, "kind": "attempt/ended", "cause": "Traceback:\n  x\x1b[2J\r" + "y" * 9999})
    assert line[2] == line[5] == ":"
    assert line[9:].startswith("attempt ended: cause Traceback: x [2J yyy")
    assert line.isprintable()
    assert len(line) < 400
    assert line.endswith("…")


def test_events_of_several_nodes_come_in_order_of_time(run: RunDir) -> None:
    fill(run.events, [{"time": 2.0, "kind": "b"}, {"time": 1.0, "kind": "a"}])
    assert [event["kind"] for event in read_events(run)] == ["a", "b"]


# Functions that write events, in any package.
WRITERS = {"append_event", "report", "_report", "add"}


def test_written_events_have_descriptions_and_vice_versa() -> None:
    files = (ROOT / "slurm_rl").rglob("*.py")
    calls = [node for path in files for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) in WRITERS]
    words = [word.value for call in named for word in call.args[:2] if isinstance(word, ast.Constant)]
    written = {word for word in words if isinstance(word, str) and re.fullmatch(r"[a-z]+/[a-z_]+", word)}
    assert len(written) > 50 and written == set(PHRASES)
