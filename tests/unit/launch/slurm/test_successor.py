"""Decide whether a job that waited for another one continues the run; Slurm's answers are fakes."""

from pathlib import Path
from typing import Any

import pytest

from slurm_rl.launch.controller.record import load_job
from slurm_rl.launch.slurm import successor
from slurm_rl.launch.slurm.commands import JobInfo
from slurm_rl.launch.slurm.partitions import preempt_mode
from slurm_rl.launch.slurm.states import parse_state
from slurm_rl.run_dir.run_dir import RunDir, read_json, write_json

JOB = {"launcher": "slurm", "job_id": "7", "earlier": ["5"]}


@pytest.mark.parametrize(
    ("own", "followed", "job", "end", "state", "expected"),
    [
        ("7", None, JOB, False, "COMPLETED", (["5"], None)),
        ("8", None, None, False, "COMPLETED", ([], None)),
        ("8", "7:6", JOB, False, "PREEMPTED", (["5", "6"], None)),
        ("8", "7:6", JOB, False, "CANCELLED", ([], "job 7 was cancelled (scancel)")),
        ("8", "7:6", JOB, True, "COMPLETED", ([], "the run has ended: finished")),
        ("9", "7:6", {**JOB, "job_id": "8"}, False, "COMPLETED", ([], "job 7 was followed by job 8")),
    ],
    ids=["own", "first", "preempted", "cancelled", "ended", "second of two"],
)
def test_successor_continues_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    followed: str | None,
    job: Any,
    end: bool,
    state: str,
    expected: Any,
) -> None:
    run = RunDir(tmp_path)
    if job:
        write_json(run.job, job)
    if end:
        write_json(run.end, {"state": "finished", "cause": ""})
    if followed:
        monkeypatch.setenv(successor.FOLLOWED, followed)
    before = JobInfo("7", parse_state(state), state, "", "", None, None)
    monkeypatch.setattr(successor, "query_jobs", lambda ids: {"7": before})
    assert successor.follow(run, own) == expected
    assert not job or load_job(run) is not None
    if state == "CANCELLED":
        assert read_json(run.end)["state"] == "interrupted"


@pytest.mark.parametrize(
    ("kind", "partition", "qos", "expected"),
    [
        ("preempt/none", "CANCEL", "cancel", ""),
        ("preempt/partition_prio", "CANCEL", "requeue", "CANCEL"),
        ("preempt/partition_prio", "", "cancel", "REQUEUE"),
        ("preempt/qos", "CANCEL", "cluster", "REQUEUE"),
        ("preempt/qos", "REQUEUE", "cancel", "CANCEL"),
    ],
)
def test_preempt_mode_follows_type_of_preemption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, partition: str, qos: str, expected: str
) -> None:
    shown = f"PartitionName=p {f'PreemptMode={partition}' if partition else ''}"
    config = f"PreemptMode = REQUEUE\nPreemptType = {kind}"
    scripts = {"scontrol": f'[ $2 = config ] && echo "{config}" || echo "{shown}"', "sacctmgr": f"echo {qos}"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert preempt_mode("p", "normal") == expected


def test_job_ends_at_its_limit_or_by_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"PreemptTime": "None", "StartTime": "2026-01-01T00:00:00"}
    for fields, expected in (
        ({"TimeLimit": "UNLIMITED"}, False),
        ({"TimeLimit": "00:10:00"}, True),
        ({"TimeLimit": "99999-00:00:00"}, False),
        ({"PreemptTime": "2026-11-28T09:35:31"}, True),
        ({"StartTime": "Unknown", "TimeLimit": "00:10:00"}, False),
    ):
        monkeypatch.setattr(successor, "read_fields", lambda kind, job, fields=fields: base | fields)
        assert successor.was_ended_by_slurm("7") is expected, fields
