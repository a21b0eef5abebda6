"""Detect hanging ranks from the heartbeats of all nodes. Standard library only.

    every agent   reads the heartbeats of its node, reports them in beats-<rank>.json, late ranks in overdue-<rank>.json
    every agent   sees an overdue file and dumps the stacks of its processes into stacks-<rank>.json
    the head      groups them, names the suspect, writes hang.json and ends the attempt; the controller starts another

Of a late rollout engine only the stacks are kept: the driver restarts it (rollout/engine_supervisor.py).
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slurm_rl.errors import SlurmRLError, TrainingError
from slurm_rl.node.attempt import interval_s
from slurm_rl.node.driver import catches
from slurm_rl.node.heartbeat import DUMP_SIGNAL
from slurm_rl.node.processes import find_marked
from slurm_rl.node.rendezvous import comes_true
from slurm_rl.node.stall_detector import (
    Beat,
    Late,
    Stack,
    compare_stacks,
    find_late,
    find_stragglers,
    parse_stack,
    read_beats,
    role_of,
)
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.process_stat import read_stat
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event, read_json, write_json, write_text

CHECK_S = 2.0
REPORT_S = 10.0
_SILENT_S = 60.0
_STACK_S = 3.0
_GATHER_S = 30.0
_ISOLATED_S = 60.0
"""After this time an agent ends the attempt for its own late rank, if the head has not reacted."""
_ENGINE = "rollout-"


class HangMonitor:
    """Monitor of one node during one attempt.

    Args:
        folder: heartbeats of this node.
        mark: mark of the attempt's processes on this node.
    """

    def __init__(
        self, run: RunDir, plan: JobPlan, attempt: AttemptDir, folder: Path, *, rank: int, host: str, mark: str
    ) -> None:
        self.run_dir, self.plan, self.attempt, self.folder = run, plan, attempt, folder
        self.rank, self.host, self.mark = rank, host, mark
        self._check_at = self._report_at = self._look_at = 0.0
        self._late: list[Late] = []
        self._late_since: float | None = None
        self._stacks: list[Stack] | None = None
        self._stragglers: set[str] = set()

    def check(self, now: float | None = None) -> None:
        """Check the heartbeats every few seconds, in the loop of the agent. Raises TrainingError if a rank hangs."""
        now = time.monotonic() if now is None else now
        if now < self._check_at:
            return
        self._check_at = now + CHECK_S
        # Processes that have ended are noticed elsewhere.
        beats = [beat for beat in read_beats(self.folder, now) if _state_of(beat.pid) not in ("", "Z")]
        late = find_late(beats, self.host, self.plan.limits.heartbeat_timeout_s, self.plan.limits.step_timeout_s)
        known = {one.name for one in self._late}
        if engines := tuple(one.name for one in late if one.name.startswith(_ENGINE) and one.name not in known):
            self._dump_stacks(engines)
        if beats and (now >= self._report_at or {one.name for one in late} != known):
            self._report_at, self._late = now + interval_s(REPORT_S, self.plan.num_nodes), late
            with contextlib.suppress(OSError):
                self._report(beats)
        ranks = [one for one in late if not one.name.startswith(_ENGINE)]
        if ranks and self._late_since is None:
            self._late_since = now
            write_json(self.attempt.path / f"overdue-{self.rank}.json", [asdict(one) for one in ranks])
        overdue: list[Path] = []
        if ranks or now >= self._look_at:
            self._look_at = now + interval_s(CHECK_S, self.plan.num_nodes)
            overdue = sorted(self.attempt.path.glob("overdue-*.json"))
        if overdue and self._stacks is None:
            trigger_flight_recorders(self.folder)
            self._stacks = self._dump_stacks()
            write_json(self.attempt.path / f"stacks-{self.rank}.json", [asdict(stack) for stack in self._stacks])
            if self.rank == 0:
                raise self._judge([Late(**row) for path in overdue for row in read_json(path)])
        if ranks and self._late_since is not None and now > self._late_since + _ISOLATED_S:
            raise TrainingError(ranks[0].rule, seen=_compare(self._stacks or (), ranks)[1], where=self.host)

    def _report(self, beats: Sequence[Beat]) -> None:
        """Write the report for `status`, the driver and the head, which also looks for stragglers."""
        report = {"time": round(time.time(), 3), "rank": self.rank, "host": self.host}
        report |= {"late": [asdict(one) for one in self._late], "beats": [asdict(beat) for beat in beats]}
        write_json(self.attempt.beats(self.rank), report)
        if self.rank == 0:
            self._report_stragglers()

    def _report_stragglers(self) -> None:
        """Log each straggler once, as soft evidence against its node where the run has several nodes."""
        rows = [(row, report["host"]) for report in read_node_reports(self.attempt) for row in report["beats"]]
        host_of, slow = {row["name"]: host for row, host in rows}, find_stragglers([Beat(**row) for row, _ in rows])
        for name in sorted(slow.keys() - self._stragglers):
            self._stragglers.add(name)
            fields = {"attempt": self.attempt.number, "node": host_of[name]}
            append_event(self.run_dir, "rank/straggling", rank=name, score=slow[name], **fields)
            if len(set(host_of.values())) > 1:
                value = f"{name} runs at {slow[name]:.2f} of its peers' speed in 5 steps"
                self._suspect_node(host_of[name], "straggler", value)

    def _suspect_node(self, node: str, check: str, value: str) -> None:
        finding = {"check": check, "value": value, "strength": "soft"}
        append_event(self.run_dir, "node/unfit", node=node, attempt=self.attempt.number, **finding)

    def _judge(self, late: Sequence[Late]) -> TrainingError:
        """Gather the stacks of all nodes, log the suspects and write hang.json; return the error to raise."""
        paths = [self.attempt.path / f"stacks-{rank}.json" for rank in range(self.plan.num_nodes)]
        comes_true(lambda: set(paths) <= set(self.attempt.path.iterdir()), _GATHER_S)
        stacks = [Stack(**row) for path in paths if path.is_file() for row in read_json(path)]
        suspects, verdict = _compare(stacks, late)
        if self.plan.accelerator != "cpu":
            verdict += f"; for collectives: torchfrtrace --prefix nccl_trace_rank_ {self.run_dir.path}"
        if silent := [str(rank) for rank, path in enumerate(paths) if not path.is_file()]:
            verdict += f"; no stacks came from node rank {', '.join(silent)}"
        fields = {"attempt": self.attempt.number, "phase": late[0].phase, "verdict": verdict}
        for one in suspects or late:
            append_event(self.run_dir, "rank/hung", rank=one.name, node=one.node, **fields)
        nodes = {one.node for one in suspects}
        for node in sorted(nodes) if len(nodes) < self.plan.num_nodes else ():
            self._suspect_node(node, "hang", verdict)
        seen, where = f"{late[0].age_s:.0f} s; {verdict}", f"{self.attempt.logs.name}/stacks"
        error = TrainingError(late[0].rule, seen=seen, where=where)
        write_json(self.attempt.hang, {"cause": str(error)})
        return error

    def _dump_stacks(self, prefixes: tuple[str, ...] = ("",)) -> list[Stack]:
        """Let the attempt's processes with these names write their stacks; keep them in logs/stacks."""
        beats = [beat for beat in read_beats(self.folder, time.monotonic()) if beat.name.startswith(prefixes)]
        files = {beat.name: self.folder / f"{beat.name}.stack" for beat in beats}
        before, ours = {name: file.stat().st_size for name, file in files.items()}, set(find_marked(self.mark))
        for beat in beats:
            # Without its handler the signal would kill the process; the pid may belong to another one by now.
            if beat.pid in ours and catches(beat.pid, DUMP_SIGNAL):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(beat.pid, DUMP_SIGNAL)
        comes_true(lambda: all(file.stat().st_size > before[name] for name, file in files.items()), _STACK_S)
        stacks = []
        for beat in beats:
            text = files[beat.name].read_bytes()[before[beat.name] :].decode(errors="replace")
            if text:
                write_text(self.attempt.logs / "stacks" / f"{beat.name}.txt", text)
            stacks.append(Stack(beat.name, self.host, parse_stack(text), _state_of(beat.pid)))
        return stacks


def read_node_reports(attempt: AttemptDir) -> list[dict[str, Any]]:
    """Return the reports of all agents of an attempt, by node rank."""
    reports = []
    for path in attempt.path.glob("beats-*.json"):
        with contextlib.suppress(SlurmRLError, OSError):
            reports.append(read_json(path))
    return sorted(reports, key=lambda report: int(report["rank"]))


def describe_silent(reports: Sequence[Mapping[str, Any]], now: float) -> list[str]:
    """Describe late processes, and nodes without reports of their agents, at the Unix time `now`.

    >>> late = {"name": "rank-1", "phase": "train", "age_s": 70.2, "deadline_s": 60.0}
    >>> describe_silent([{"time": 1000.0, "host": "n2", "late": [late]}], 1001.0)
    ['rank-1 on n2: no heartbeat for 71 s in train, the deadline is 60 s']
    >>> describe_silent([{"time": 900.0, "host": "n3", "late": []}], 1001.0)
    ['n3: no report from its agent for 101 s']
    """
    lines = []
    for report in reports:
        age = now - report["time"]
        if age > _SILENT_S:
            lines.append(f"{report['host']}: no report from its agent for {age:.0f} s")
        for one in report["late"]:
            seen = f"no heartbeat for {one['age_s'] + age:.0f} s in {one['phase']}"
            lines.append(f"{one['name']} on {report['host']}: {seen}, the deadline is {one['deadline_s']:.0f} s")
    return lines


def trigger_flight_recorders(folder: Path) -> None:
    """Let NCCL's monitors on this node dump their flight recorders (nccl_trace_rank_* in the run directory)."""
    for pipe in folder.glob("*.pipe"):
        with contextlib.suppress(OSError):  # no reader
            number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(number, b"1\n")
            os.close(number)


def _compare(stacks: Sequence[Stack], late: Sequence[Late]) -> tuple[list[Stack], str]:
    """Return suspects and verdict among the processes with the roles of the late ones."""
    roles = {role_of(one.name) for one in late}
    return compare_stacks([stack for stack in stacks if role_of(stack.name) in roles])


def _state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; "" if it has ended."""
    return next(iter(read_stat(pid)), "")
