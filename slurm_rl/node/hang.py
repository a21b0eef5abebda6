"""What a node's agent does about ranks that no longer beat. Standard library alone.

    every agent   looks at the beats of its node: beats-<rank>.json tells all, overdue-<rank>.json of late ones
    the head      sees one late: writes dump.json
    every agent   has all its processes write their stacks, and tells them in stacks-<rank>.json
    the head      groups them, names the suspect, writes hang.json and ends the attempt; a new one follows

The driver replaces a late rollout engine (rl/rollout/engine_supervisor.py); here only its stacks are kept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm_rl.beats import recorder
from slurm_rl.beats.judge import Beat, find_overdue, find_stragglers, parse_beat
from slurm_rl.beats.pulse import DUMP_SIGNAL
from slurm_rl.beats.stacks import Stack, describe_groups, group_stacks, name_suspects, parse_stack
from slurm_rl.errors import SlurmRLError, TrainingError
from slurm_rl.holder import read_stat
from slurm_rl.node.driver import catches
from slurm_rl.node.processes import find_marked
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.nodes.evidence import Evidence, note_evidence
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir import AttemptDir, RunDir, append_event, read_json, write_json, write_text

LOOK_S = 2.0
TELL_S = 10.0
ENGINES = "rollout"
_SILENT_S = 60.0
_STACK_S = 3.0
"""A process that has not written its stacks by then does not answer."""
_GATHER_S = 30.0
_RECORDER_S = 15.0
_ALONE_S = 60.0
"""An agent whose late rank no head has asked about ends the attempt itself: they share no folder."""


@dataclass(frozen=True)
class Late:
    """A process without a beat for longer than its deadline."""

    name: str
    node: str
    phase: str
    age_s: float
    deadline_s: float


class HangWatch:
    """Of one node and attempt.

    Args:
        folder: of this node's beats.
        mark: of this attempt's processes on this node.
    """

    def __init__(
        self, run: RunDir, plan: JobPlan, attempt: AttemptDir, folder: Path, *, rank: int, host: str, mark: str
    ) -> None:
        self.run_dir, self.plan, self.attempt, self.folder = run, plan, attempt, folder
        self.rank, self.host, self.mark = rank, host, mark
        self._look_at = self._tell_at = 0.0
        self._told_late: tuple[str, ...] = ()
        self._late_since: float | None = None
        self._has_dumped = False
        self._dumped_engines: set[str] = set()
        self._stragglers: set[str] = set()

    def look(self, now: float | None = None) -> None:
        """Cheap between two looks; call it in the agent's loop.

        Raises:
            TrainingError: a rank hangs; with the verdict.
        """
        now = time.monotonic() if now is None else now
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        # Whoever is gone does not hang; that is noticed elsewhere, at once.
        beats = [beat for beat in read_beats(self.folder, now) if next(iter(read_stat(beat.pid)), "Z") != "Z"]
        limits = self.plan.limits
        overdue = find_overdue(beats, limits.hang_after_s, limits.step_timeout_s)
        late = [Late(b.name, self.host, b.phase, round(b.age_s, 1), round(at, 1)) for b, at in overdue]
        self._keep_stacks_of_engines(late)
        self._tell(beats, late, now)
        ranks = [one for one in late if not one.name.startswith(f"{ENGINES}-")]
        if ranks and self._late_since is None:
            self._late_since = now
            write_json(self.attempt.path / f"overdue-{self.rank}.json", [asdict(one) for one in ranks])
        self._answer({path.name for path in self.attempt.path.iterdir()}, ranks, now)

    def _answer(self, names: set[str], ranks: Sequence[Late], now: float) -> None:
        asked = self.attempt.dump.name in names
        if self.rank == 0 and not asked and (reports := sorted(name for name in names if name.startswith("overdue-"))):
            write_json(self.attempt.dump, {"asked_by": self.host})
            self._dump()
            raise self._judge([Late(**row) for name in reports for row in read_json(self.attempt.path / name)])
        if asked and not self._has_dumped:
            self._dump()
        if ranks and not asked and self._late_since is not None and now > self._late_since + _ALONE_S:
            stacks = self._dump()
            raise TrainingError(*_rule(ranks[0]), seen=_tell_stacks(stacks, ranks), where=self.host)

    # ---- what is told --------------------------------------------------------------------------

    def _tell(self, beats: Sequence[Beat], late: Sequence[Late], now: float) -> None:
        """For `status`, the driver and the head: every so often, and at once when another is late."""
        names = tuple(one.name for one in late)
        if not beats or (now < self._tell_at and names == self._told_late):
            return
        self._tell_at, self._told_late = now + TELL_S, names
        rows = {
            "time": round(time.time(), 3),
            "rank": self.rank,
            "host": self.host,
            "late": [asdict(one) for one in late],
        }
        with contextlib.suppress(OSError):  # nobody's run ends for want of it
            write_json(self.attempt.beats(self.rank), rows | {"beats": [asdict(beat) for beat in beats]})
            if self.rank == 0:
                self._tell_of_stragglers()

    def _tell_of_stragglers(self) -> None:
        """Once each: an event, and soft evidence against the node, which counts when another attempt says it too."""
        host_of, beats = {}, []
        for told in read_told(self.attempt):
            for row in told["beats"]:
                beat = Beat(**{**row, "speeds": tuple(row["speeds"])})
                host_of[beat.name] = told["host"]
                beats.append(beat)
        slow = find_stragglers(beats)
        for name in sorted(slow.keys() - self._stragglers):
            self._stragglers.add(name)
            node, number = host_of[name], self.attempt.number
            append_event(self.run_dir, "rank/straggling", attempt=number, rank=name, node=node, score=slow[name])
            if len(set(host_of.values())) > 1:
                said = f"{name} works at {slow[name]:.2f} of its peers' speed in 5 steps"
                note_evidence(self.run_dir, Evidence.found(node, "straggler", said, "soft", attempt=number))

    # ---- stacks --------------------------------------------------------------------------------

    def _keep_stacks_of_engines(self, late: Sequence[Late]) -> None:
        new = {one.name for one in late if one.name.startswith(f"{ENGINES}-")} - self._dumped_engines
        if new:
            self._dumped_engines |= new
            # With its workers: the actor itself only waits for them.
            parts = tuple(f"{name}." for name in new)
            dump_stacks(
                self.folder, self.attempt.logs, self.host, self.mark, lambda name: name in new or name.startswith(parts)
            )

    def _dump(self) -> list[Stack]:
        self._has_dumped = True
        ask_recorders(self.folder)
        stacks = dump_stacks(self.folder, self.attempt.logs, self.host, self.mark)
        write_json(self.attempt.path / f"stacks-{self.rank}.json", [asdict(stack) for stack in stacks])
        return stacks

    def _judge(self, late: Sequence[Late]) -> TrainingError:
        """The verdict over all nodes, written down; to be raised."""
        asked_at = time.time() - LOOK_S
        paths = [self.attempt.path / f"stacks-{rank}.json" for rank in range(self.plan.num_nodes)]
        comes_true(lambda: set(paths) <= set(self.attempt.path.iterdir()), _GATHER_S)
        stacks = [
            Stack(**{**row, "frames": tuple(row["frames"])})
            for path in paths
            if path.is_file()
            for row in read_json(path)
        ]
        groups, suspects = _compare(stacks, late)
        found = f"{describe_groups(groups, suspects)}; {self._ask_recorder(asked_at)}"
        silent = [str(rank) for rank, path in enumerate(paths) if not path.is_file()]
        if silent:
            found += f"; no stacks came from node rank {', '.join(silent)}"
        self._note(late, suspects, found)
        error = TrainingError(
            *_rule(late[0]), seen=f"{late[0].age_s:.0f} s; {found}", where=f"{self.attempt.logs.name}/stacks"
        )
        write_json(self.attempt.hang, {"cause": str(error), "suspects": [asdict(one) for one in suspects]})
        return error

    def _ask_recorder(self, asked_at: float) -> str:
        if self.plan.accelerator == "cpu":
            return recorder.NONE_OF_GLOO
        comes_true(lambda: bool(recorder.read_dumps(self.run_dir.path, asked_at)), _RECORDER_S)
        dumps = recorder.read_dumps(self.run_dir.path, asked_at)
        return recorder.tell_verdict(dumps) if dumps else recorder.NONE_CAME

    def _note(self, late: Sequence[Late], suspects: Sequence[Stack], found: str) -> None:
        number, phase = self.attempt.number, late[0].phase
        for one in suspects or [Stack(it.name, it.node) for it in late]:
            append_event(
                self.run_dir, "rank/hung", attempt=number, rank=one.name, node=one.node, phase=phase, verdict=found
            )
        nodes = {one.node for one in suspects}
        if 0 < len(nodes) < self.plan.num_nodes:
            for node in sorted(nodes):
                note_evidence(self.run_dir, Evidence.found(node, "hang", found, "soft", attempt=number))


def read_beats(folder: Path, now: float) -> list[Beat]:
    """Of the living and the dead processes of this node."""
    found = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError):
            found.append(parse_beat(path.read_text(encoding="ascii", errors="replace"), now))
    return [beat for beat in found if beat is not None]


def read_told(attempt: AttemptDir) -> list[dict[str, Any]]:
    """What the agents of an attempt told of their beats, by node rank."""
    paths = sorted(attempt.path.glob("beats-*.json"), key=lambda path: (len(path.name), path.name))
    found = []
    for path in paths:
        with contextlib.suppress(SlurmRLError, OSError):  # no run ends for want of it
            found.append(read_json(path))
    return found


def tell_silent(told: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """Who is late, and nodes whose agents tell nothing any more; in words.

    Args:
        told: what agents told.
        now: in seconds since 1970.

    >>> late = {"name": "rank-1", "phase": "train", "age_s": 70.2, "deadline_s": 60.0}
    >>> tell_silent([{"time": 1000.0, "host": "n2", "late": [late]}], 1001.0)
    ['rank-1 on n2: no sign of life for 71 s in train, at most 60 s are usual']
    >>> tell_silent([{"time": 900.0, "host": "n3", "late": []}], 1001.0)
    ['n3: its agent has told nothing for 101 s']
    """
    said = []
    for row in told:
        age = now - row["time"]
        if age > _SILENT_S:
            said.append(f"{row['host']}: its agent has told nothing for {age:.0f} s")
        said += [
            f"{one['name']} on {row['host']}: no sign of life for {one['age_s'] + age:.0f} s in {one['phase']}, "
            f"at most {one['deadline_s']:.0f} s are usual"
            for one in row["late"]
        ]
    return said


def dump_stacks(
    folder: Path, logs: Path, host: str, mark: str, chooses: Callable[[str], bool] = lambda name: True
) -> list[Stack]:
    """Have our processes here write their stacks, and keep them below `logs`/stacks."""
    beats = [beat for beat in read_beats(folder, time.monotonic()) if chooses(beat.name)]
    ours = set(find_marked(mark))
    before = {beat.name: _size(folder / f"{beat.name}.stack") for beat in beats}
    for beat in beats:
        # Without the handler the signal would end it; a number may have become another's.
        if beat.pid in ours and catches(beat.pid, DUMP_SIGNAL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat.pid, DUMP_SIGNAL)
    comes_true(lambda: all(_size(folder / f"{name}.stack") > size for name, size in before.items()), _STACK_S)
    found = []
    for beat in beats:
        path = folder / f"{beat.name}.stack"
        text = path.read_text(encoding="utf-8", errors="replace") if _size(path) > before[beat.name] else ""
        state = next(iter(read_stat(beat.pid)), "")
        if text:
            write_text(logs / "stacks" / f"{beat.name}.txt", text)
        found.append(Stack(beat.name, host, parse_stack(text), state))
    return found


def ask_recorders(folder: Path) -> None:
    """Have NCCL's monitors of this node write their flight recorders; they wait at pipes."""
    for pipe in folder.glob("*.pipe"):
        with contextlib.suppress(OSError):  # nobody reads it
            number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(number, b"1\n")
            os.close(number)


def _compare(stacks: Sequence[Stack], late: Sequence[Late]) -> tuple[list[list[Stack]], list[Stack]]:
    """Groups and suspects among those that do the same as the late ones."""
    roles = {one.name.rpartition("-")[0] or one.name for one in late}
    groups = group_stacks(stack for stack in stacks if (stack.name.rpartition("-")[0] or stack.name) in roles)
    return groups, name_suspects(groups)


def _tell_stacks(stacks: Sequence[Stack], late: Sequence[Late]) -> str:
    return describe_groups(*_compare(stacks, late))


def _rule(late: Late) -> tuple[str]:
    return (f"{late.name} on {late.node} must get on in {late.phase} within {late.deadline_s:g} s",)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
