import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.data.groups import Details, SamplingSpec, Trajectory
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.environment import Step, ToolCall
from slurm_rl.envs.facts import Facts
from slurm_rl.envs.worker import Snapshot
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.results import Failure
from slurm_rl.rollout.response import Response
from slurm_rl.rollout.turn_log import BatchLog, TurnLog
from slurm_rl.rollout.turn_log_format import (
    Row,
    TurnKey,
    build_histories,
    parse_lines,
    render_histories,
    render_outcome,
    render_row,
)

SPEC = SamplingSpec(2, 8, 1.0, 1.0, seed=7, batch="rollout-3")
PROMPTS = [EncodedPrompt(index=0, token_ids=[5, 6], text="?", answer="")]
STEP = Step("<", None, False, {"near": 0.5})
FACTS = Facts("replay", "a")


def reply(version: int = 3, text: str = "5") -> Response:
    return Response.pack(Trajectory([70000, 2], [-0.1, -1.0000001192092896e-7], text, False, version))


def at(turn: int, member: int = 0) -> TurnKey:
    return 0, member, turn


def render_reply(key: TurnKey, said: Response) -> bytes:
    return render_row(Row(*key, reply=said))


class Events:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, kind: str, **fields: Any) -> None:
        self.rows.append({"kind": kind, **fields})

    @property
    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.rows]


def open_journal(folder: Path, facts: Facts = FACTS, version: int = 3) -> tuple[Any, Events]:
    events = Events()
    journal = TurnLog(folder, facts, keeps_all=False, report=events)
    journal.resume(version, None)
    return journal, events


def write_journal(folder: Path, lines: list[bytes], facts: Facts = FACTS) -> BatchLog:
    journal, _ = open_journal(folder, facts)
    batch: BatchLog = journal.open(SPEC, PROMPTS)
    batch.write(lines)
    journal.close()
    return batch


LINES = [
    render_reply(at(0), reply()),
    render_outcome(at(0), STEP, b"\x00world"),
    render_reply(at(1), reply(text="3 ö")),
    render_outcome(at(1), Failure("crash", "gone"), None),
    render_reply(at(0, 1), reply()),
    render_row(Row(0, 1, verdict={"value": 0.25, "parts": {}})),
]


DETAILS = Details(token_versions=[2, 3], content="c", calls=(ToolCall("add", "{}", "3"),))
FULL = Trajectory([1, 7], [-1.0, 0.0], "x", True, 2, DETAILS)
STEPS = [
    Step("", 0.0, True, {"half": 1e-300}),
    Step("a", None, False, {}, (ToolCall("add", "{}"),), "", True, {"black": 0.0}),
]


@pytest.mark.parametrize("said", [Trajectory([], [], "", False, 0), FULL])
@pytest.mark.parametrize("step", STEPS)
def test_log_lines_restore_every_field(said: Trajectory, step: Step) -> None:
    rows, _ = parse_lines(render_reply(at(0), Response.pack(said)) + render_outcome(at(0), step, None))
    [history] = build_histories(rows, None).values()
    assert [it.unpack() for it in history.replies] == [said] and history.outcomes == [step]


def test_log_restores_every_bit(tmp_path: Path) -> None:
    write_journal(tmp_path, LINES)
    again, events = open_journal(tmp_path)
    histories = again.open(SPEC, PROMPTS).histories
    first, second = histories[0, 0], histories[0, 1]
    assert first.replies == [reply(), reply(text="3 ö")] and first.outcomes == [STEP, Failure("crash", "gone")]
    assert first.snapshot == Snapshot(1, b"\x00world")
    assert second.replies == [reply()] and not second.outcomes and second.verdict == {"value": 0.25, "parts": {}}
    assert events.rows == [{"kind": "journal/opened", "batch": "rollout-3", "episodes": 2, "turns": 3}]
    [file] = tmp_path.iterdir()
    assert build_histories(parse_lines(file.read_bytes())[0], None) == {(0, 0): first, (0, 1): second}


@pytest.mark.parametrize("lost", [1, 20])
def test_open_truncates_torn_end(tmp_path: Path, lost: int) -> None:
    batch = write_journal(tmp_path, LINES)
    batch.path.write_bytes(batch.path.read_bytes()[:-lost])
    again, events = open_journal(tmp_path)
    batch = again.open(SPEC, PROMPTS)
    assert batch.histories[0, 1].verdict is None and batch.histories[0, 1].replies == [reply()]
    assert events.kinds == ["journal/cut", "journal/opened"] and events.rows[0]["dropped"] == len(LINES[-1]) - lost
    batch.write(LINES[-1:])
    again.close()
    third, events = open_journal(tmp_path)
    assert third.open(SPEC, PROMPTS).histories[0, 1].verdict and events.kinds == ["journal/opened"]


def test_parse_stops_at_damaged_line() -> None:
    # One changed letter: valid JSON, but another environment.
    damaged = b"".join(LINES).replace(b'"observation":"<"', b'"observation":">"')
    rows, end = parse_lines(damaged)
    assert len(rows) == 1 and end == len(LINES[0])


def test_open_drops_turns_of_unsaved_weights(tmp_path: Path) -> None:
    lines = [LINES[0], LINES[1], render_reply(at(1), reply(version=4)), render_outcome(at(1), STEP, b"new")]
    histories = build_histories(parse_lines(b"".join(lines))[0], 3)
    assert len(histories[0, 0].replies) == 1 and histories[0, 0].snapshot == Snapshot(1, b"\x00world")
    mixed = Response.pack(Trajectory([1, 2], [-1.0, -1.0], "a", False, 3, Details(token_versions=[3, 4])))
    assert not build_histories(parse_lines(render_reply(at(0), mixed))[0], 3)[0, 0].replies
    write_journal(tmp_path, lines)
    again, _ = open_journal(tmp_path, version=3)
    again.open(SPEC, PROMPTS)
    again.close()
    # Also removed from the file: the run trains again, and its next version 4 differs.
    later, _ = open_journal(tmp_path, version=3)
    later.version = 4
    assert len(later.open(SPEC, PROMPTS).histories[0, 0].replies) == 1


def test_repeated_reply_replaces_later_turns() -> None:
    lines = [*LINES[:4], render_reply(at(0), reply(text="new"))]
    [history] = build_histories(parse_lines(b"".join(lines))[0], None).values()
    assert [it.text for it in history.replies] == ["new"] and not history.outcomes and history.snapshot is None
    assert build_histories(parse_lines(b"".join(render_histories({(0, 0): history})))[0], None) == {(0, 0): history}


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        (Facts("snapshot", "a"), Facts("snapshot", "b"), True),
        (Facts("snapshot", "a"), Facts("replay", "a"), True),
        (Facts("replay", "a"), Facts("replay", "b"), False),
        (Facts("snapshot", "a"), Facts("snapshot", "a"), False),
    ],
)
def test_open_rejects_snapshot_of_another_environment(tmp_path: Path, before: Facts, now: Facts, refused: bool) -> None:
    write_journal(tmp_path, LINES[:2], before)
    again, events = open_journal(tmp_path, now)
    if refused:
        with pytest.raises(ConfigError, match="must be restored by the environment class that wrote it"):
            again.open(SPEC, PROMPTS)
    else:
        assert again.open(SPEC, PROMPTS).histories
        assert ("journal/environment_changed" in events.kinds) == (before != now)


def test_open_drops_log_of_other_prompts(tmp_path: Path) -> None:
    write_journal(tmp_path, LINES)
    again, events = open_journal(tmp_path)
    other = [EncodedPrompt(index=0, token_ids=[5, 7], text="?", answer="")]
    assert not again.open(SPEC, other).histories and events.kinds == ["journal/dropped"]


def test_save_copies_active_batches_into_checkpoint(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path / "run")
    journal.open(SPEC, PROMPTS).write(LINES)
    (tmp_path / "step-3").mkdir()
    journal.save(tmp_path / "step-3", 3)
    moved, _ = open_journal(tmp_path / "elsewhere")
    moved.resume(3, tmp_path / "step-3")
    assert len(moved.open(SPEC, PROMPTS).histories) == 2


@pytest.mark.parametrize(
    ("keeps_all", "staleness", "left"), [(True, 0, [3, 4, 5, 6]), (False, 0, [3, 6]), (False, 1, [3, 4, 6])]
)
def test_prune_removes_unneeded_batches(tmp_path: Path, keeps_all: bool, staleness: int, left: list[int]) -> None:
    journal = TurnLog(tmp_path, FACTS, keeps_all=keeps_all, staleness=staleness, report=Events())
    for step in range(2, 7):
        journal.open(SamplingSpec(1, 8, 1.0, 1.0, seed=step, batch=f"rollout-{step}"), PROMPTS)
    journal.prune(6, 3)
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == left


TOKENS = st.tuples(
    st.integers(0, 2**31 - 1), st.floats(max_value=0.0, allow_nan=False), st.integers(-1, 2**31 - 1)
)  # an id, its logprob, the version that sampled it
CALLS = st.lists(st.builds(ToolCall, st.text(), st.text())).map(tuple)


@given(st.lists(TOKENS), st.text(), st.booleans(), st.text(), CALLS)
def test_unpack_restores_every_bit(
    tokens: list[tuple[int, float, int]], text: str, cut: bool, content: str, calls: tuple[ToolCall, ...]
) -> None:
    ids, logprobs = [it for it, _, _ in tokens], [it for _, it, _ in tokens]
    versions = [it for _, _, it in tokens]
    mixed = versions if len(set(versions)) > 1 else []
    version = versions[0] if versions else 3
    details = Details(token_versions=mixed, content=content, calls=calls)
    said = Trajectory(ids, logprobs, text, cut, version, details if details != Details() else None)
    packed = Response.pack(said)
    assert packed.unpack() == said and list(packed.versions()) == said.versions()
    assert [math.copysign(1.0, it) for it in packed.unpack().logprobs] == [math.copysign(1.0, it) for it in logprobs]
