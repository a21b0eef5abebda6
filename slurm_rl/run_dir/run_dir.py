"""The run directory: the only state that the stages of a run share.

Only this file has the file names. JSON is written to a temporary file and renamed, so a reader sees the old file or the
new one, never a part. Standard library only: the node agent imports it.

    runs/addition-20261121-101500/
      config.yaml plan.json         the user's config, the plan derived from it
      code/                         the snapshot of slurm_rl that every attempt runs
      secrets/                      0700; the Ray token of each attempt, 0600
      model/ reference/             built for this run: a model with random weights; the policy after the warm-up
      job.json end.json             the launcher's job; its outcome, the last file that the controller writes
      learned.json                  times of saves and of lost attempts, over all attempts; see save_times.py
      lease/                        the lock of the controller: see run_lock.py
      remedy.json                   smaller micro-batches after an attempt ran out of memory
      machines.json                 address of the head, on machines without Slurm
      prompts.json                  number and checksum of the prompts, which a resumed run must find again
      attempts/<n>/                 logs/, start.json, head.json, outcome.json, end.json; one folder per attempt
      attempts/<n>/steps.jsonl      the time of each step, evaluation and save; see run_dir/step_log.py
      attempts/latest               link to the newest attempt
      events.jsonl metrics.jsonl    append-only; one JSON object per line: see jsonl.py
      nodes.jsonl                   evidence against nodes: see plugins/health/evidence.py
      journal/                      turns of episodes in progress; see rollout/turn_log.py
      judge.jsonl                   replies of a judge; a resumed run reads them again
      prometheus.json otel_events   address of the endpoint; number of events that a collector has
      run_id                        id of the run on tracking servers
      samples.jsonl                 a few completions of each logged step, for the report
      evals/step-<k>/               run directories of eval.on_checkpoint; see plugins/evals
      checkpoints/step-<k>/         see models/checkpoint/store.py
      cache/                        compiled kernels and downloads of runs in containers
      tensorboard/ export/          curves; the trained model in Hugging Face format
      summary.json report.html      results
      .reserve                      reserved space for the outcome, if the disk is full
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_rl.errors import LeaseError, RunDirError
from slurm_rl.run_dir import jsonl
from slurm_rl.run_dir.io_errors import (
    annotate_path,
    describe_disk,
    fsync_path,
    log_to_stderr,
    next_action,
    open_regular,
)
from slurm_rl.run_dir.run_lock import LockHolder, RunLock, acquire, require_epoch

# Numbers of damaged lines that one event names.
_MOST_TOLD = 20


class RunDir:
    """Names of the files of one run. Making the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.epoch: int | None = None  # of the controller that this process is or belongs to
        self.config = self.path / "config.yaml"
        self.plan = self.path / "plan.json"
        self.code = self.path / "code"
        self.secrets = self.path / "secrets"
        self.model = self.path / "model"
        self.reference = self.path / "reference"
        """The reference policy, when the warm-up made it; of DPO, its logprobs of all answers."""
        self.prompts = self.path / "prompts.json"
        self.end = self.path / "end.json"
        self.learned = self.path / "learned.json"
        self.lease = self.path / "lease"
        self.submitit = self.path / "submitit"
        self.job = self.path / "job.json"
        self.machines = self.path / "machines.json"
        self.attempts = self.path / "attempts"
        self.events = self.path / "events.jsonl"
        self.metrics = self.path / "metrics.jsonl"
        self.samples = self.path / "samples.jsonl"
        self.judge = self.path / "judge.jsonl"
        self.nodes = self.path / "nodes.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.evals = self.path / "evals"
        """Run directories `step-<k>` of eval.on_checkpoint."""
        self.evaluated = self.path / "checkpoint"
        """In such a directory: links to the policy's files, until they are converted into `model`."""
        self.rollouts = self.path / "rollouts"
        self.journal = self.path / "journal"
        self.tensorboard = self.path / "tensorboard"
        self.wandb = self.path / "wandb"
        self.prometheus = self.path / "prometheus.json"
        self.export = self.path / "export"
        self.remedy = self.path / "remedy.json"
        self.summary = self.path / "summary.json"
        self.report = self.path / "report.html"
        self.reserve = self.path / ".reserve"
        """Holds the room that `write_last` gives away."""

    def require_ours(self) -> None:
        """Raise LeaseError if another controller owns the run; call before every write that counts."""
        if self.epoch is not None:
            require_epoch(self.lease, self.epoch)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.attempts / str(number))

    def attempt_numbers(self) -> list[int]:
        """Numbers of the attempts on disk, oldest first."""
        if not self.attempts.is_dir():
            return []
        return sorted(int(p.name) for p in self.attempts.iterdir() if p.name.isdigit())

    def point_latest_at(self, number: int) -> None:
        """Repoint `attempts/latest` in one rename, so that it never dangles."""
        beside = self.attempts / f".latest-{os.getpid()}"
        beside.unlink(missing_ok=True)
        beside.symlink_to(str(number))
        beside.replace(self.attempts / "latest")

    def require(self) -> RunDir:
        """Return self, or raise RunDirError when this is not a run directory."""
        if not self.plan.is_file():
            raise RunDirError(
                "a run directory must contain plan.json",
                seen=str(self.path),
                action="name a directory that `python -m slurm_rl` printed",
            )
        return self


class AttemptDir:
    """Names of the files of one attempt (one start of the job)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)
        self.logs = path / "logs"
        self.start = path / "start.json"
        """Which job this attempt belongs to, written by the controller before anything else."""
        self.abort = path / "abort.json"
        """Written by the controller when a node has died: the others must stop waiting."""
        self.steps = path / "steps.jsonl"
        """Times of the loop's steps; never rewound."""
        self.head = path / "head.json"
        """Where the head node publishes its address; workers wait for it."""
        self.outcome = path / "outcome.json"
        """How the trainer ended, written by the trainer itself."""
        self.end = path / "end.json"
        """How the attempt ended, written by the controller."""
        self.hang = path / "hang.json"
        """Result of the hang detection: the cause."""

    def log(self, who: str) -> Path:
        return self.logs / f"{who}.log"

    def beats(self, rank: int) -> Path:
        """Heartbeats of a node's processes, reported by its agent."""
        return self.path / f"beats-{rank}.json"

    def node(self, rank: int) -> Path:
        """The record a node agent writes about itself: host, pid, phases, exit."""
        return self.path / f"node-{rank}.json"


@contextlib.contextmanager
def expect_writable(path: Path, then: str, *, what: str = "the run directory") -> Iterator[None]:
    """Raise RunDirError for errors of the file system in the block, with the free space.

    Args:
        path: path being written.
        then: next action after the path is writable, or instead of that.
    """
    try:
        with annotate_path(path):
            yield
    except OSError as error:
        raise RunDirError(
            f"{what} must be writable ({error.strerror}; {describe_disk(path)})",
            seen=str(path),
            action=f"{next_action(error)}, {then}",
        ) from error


def hold(
    run: RunDir,
    own: LockHolder,
    is_known_alive: Callable[[LockHolder], bool] = lambda holder: False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> RunLock:
    """Acquire the lock of a run. Raises LeaseError, or RunDirError if the run directory cannot be written."""
    with expect_writable(run.path, "then resume"):
        return acquire(run.lease, own, is_known_alive, is_stopped)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` so that a crash leaves the old file or the new one."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """The same of bytes. Raises OSError: it cannot be written; it names the path."""
    with annotate_path(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(beside).replace(path)
        except BaseException:
            # The original error is reported; a read-only file system also refuses this.
            with contextlib.suppress(OSError):
                Path(beside).unlink(missing_ok=True)
            raise
        fsync_path(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write `value` as JSON; NaN and infinity are refused, since other readers would choke."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode=mode)


def write_last(run: RunDir, path: Path, value: Any) -> bool:
    """Write the final record in the reserved space of a full disk; print it to stderr if that fails.

    Returns:
        Whether it is on disk.
    """
    for is_last in (False, True):
        try:
            run.require_ours()
            write_json(path, value)
            return True
        except LeaseError as error:
            log_to_stderr(f"{path} is not written: {error}")
            return False
        except OSError as error:
            if is_last:
                log_to_stderr(
                    f"{path} could not be written ({error}; {describe_disk(path.parent)}): {json.dumps(value)}"
                )
            else:
                with contextlib.suppress(OSError):
                    run.reserve.unlink(missing_ok=True)
    return False


def read_json(path: Path) -> Any:
    """Parse a JSON file, naming it when it is missing or broken."""
    try:
        with open_regular(path) as file:
            return json.loads(file.read())
    except FileNotFoundError:
        raise RunDirError("the file must exist", seen=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise RunDirError(f"the file must hold JSON ({error})", seen=str(path)) from None


def append_row(run: RunDir, path: Path, row: dict[str, Any]) -> None:
    """Append a line to a line file of the run; an incomplete last line from a crash is removed, which is an event."""
    run.require_ours()
    if num_bytes := jsonl.append_row(path, row):
        append_event(run, "file/mended", file=path.name, cut_off_bytes=num_bytes)


def append_event(run: RunDir, kind: str, **fields: Any) -> None:
    """Append an event: `kind` is `area/name`, the time is in seconds since the epoch. On a full disk only the event is
    lost."""
    row = {"time": round(time.time(), 3), "kind": kind, **fields}
    try:
        append_row(run, run.events, row)
    except (LeaseError, OSError) as error:
        log_to_stderr(f"an event could not be written ({error}; {describe_disk(run.path)}): {json.dumps(row)}")


def report_damage(run: RunDir) -> None:
    """Tell of damaged lines in the line files, in an event each; they stay, and are passed over."""
    for path in (run.events, run.metrics, run.samples, run.nodes):
        if numbers := jsonl.find_damaged(path):
            append_event(run, "file/damaged", file=path.name, lines=numbers[:_MOST_TOLD], num_lines=len(numbers))
