"""The run directory: the only place where the stages of a run meet.

This file alone knows the file names. JSON is written beside and renamed, so a reader sees the old
file or the new one, never half of either. Standard library alone: the node agent imports it.

    runs/addition-20261121-101500/
      config.yaml plan.json         what the user said, what was derived from it
      code/                         the snapshot of slurm_rl that every attempt runs
      secrets/                      0700; the Ray token of each attempt, 0600
      model/ reference/             built for this run: the tiny model; the policy after the warm-up
      job.json end.json             the launcher's job; how it ended
      lease/                        which controller has the run: see lease.py
      machines.json                 where the head listens, on machines without Slurm
      prompts.json                  number and checksum of the prompts
      attempts/<n>/                 logs/, start.json, head.json, outcome.json, end.json; one folder an attempt
      attempts/latest               link to the newest attempt
      events.jsonl metrics.jsonl    append-only; one JSON object a line: see jsonl.py
      samples.jsonl                 a few completions of each logged step, for the report
      checkpoints/step-<k>/         see checkpoints/store.py
      tensorboard/ export/          curves; the trained model in Hugging Face format
      summary.json report.html      what came out
      .reserve                      while it runs: room for how it ended, should the disk be full
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from slurm_rl import jsonl
from slurm_rl.disk import describe_disk, fsync_path, naming, say
from slurm_rl.errors import LeaseError, RunDirError
from slurm_rl.lease import require_epoch

# Numbers of damaged lines that one event names.
_MOST_TOLD = 20


class RunDir:
    """Names of the files of one run. Making the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.epoch: int | None = None  # of the controller that this process is or belongs to

    def require_ours(self) -> None:
        """Raise LeaseError when another controller has the run now; to be asked before what counts is written."""
        if self.epoch is not None:
            require_epoch(self.lease, self.epoch)

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def reference(self) -> Path:
        """The reference policy, when the warm-up made it; of DPO, its logprobs of all answers."""
        return self.path / "reference"

    @property
    def prompts(self) -> Path:
        """Number and checksum of the prompts, which a resumed run must find again."""
        return self.path / "prompts.json"

    @property
    def end(self) -> Path:
        """How the job ended, written by the controller as its last act."""
        return self.path / "end.json"

    @property
    def lease(self) -> Path:
        return self.path / "lease"

    @property
    def submitit(self) -> Path:
        return self.path / "submitit"

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def machines(self) -> Path:
        """Without Slurm: where the head listens for the other machines, and what they are called."""
        return self.path / "machines.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def wandb(self) -> Path:
        return self.path / "wandb"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def reserve(self) -> Path:
        """Holds the room that `write_last` gives away."""
        return self.path / ".reserve"

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
                "a run directory holds plan.json",
                seen=str(self.path),
                action="name a directory that `python -m slurm_rl` printed",
            )
        return self


class AttemptDir:
    """Names of the files of one attempt (one start of the job)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def start(self) -> Path:
        """Which job this attempt belongs to, written by the controller before anything else."""
        return self.path / "start.json"

    @property
    def abort(self) -> Path:
        """Written by the controller when a node died: the others have nobody to wait for."""
        return self.path / "abort.json"

    @property
    def head(self) -> Path:
        """Where the head node publishes its address; workers wait for it."""
        return self.path / "head.json"

    @property
    def outcome(self) -> Path:
        """How the trainer ended, written by the trainer itself."""
        return self.path / "outcome.json"

    @property
    def end(self) -> Path:
        """How the attempt ended, written by the controller."""
        return self.path / "end.json"

    def log(self, who: str) -> Path:
        return self.logs / f"{who}.log"

    def node(self, rank: int) -> Path:
        """The record a node agent writes about itself: host, pid, phases, exit."""
        return self.path / f"node-{rank}.json"


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` so that a crash leaves the old file or the new one."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """The same of bytes.

    Raises:
        OSError: it cannot be written; it names the path.
    """
    with naming(path):
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
            # What failed is what is told; a read-only file system also refuses this.
            with contextlib.suppress(OSError):
                Path(beside).unlink(missing_ok=True)
            raise
        fsync_path(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write `value` as JSON; NaN and infinity are refused, since other readers would choke."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode=mode)


def write_last(run: RunDir, path: Path, value: Any) -> bool:
    """Write what must still be said on a full disk, in the room that was kept for it; stderr gets what fails even so.

    Returns:
        Whether it is on disk.
    """
    for is_last in (False, True):
        try:
            run.require_ours()
            write_json(path, value)
            return True
        except LeaseError as error:
            say(f"{path} is not written: {error}")
            return False
        except OSError as error:
            if is_last:
                say(f"{path} could not be written ({error}; {describe_disk(path.parent)}): {json.dumps(value)}")
            else:
                with contextlib.suppress(OSError):
                    run.reserve.unlink(missing_ok=True)
    return False


def read_json(path: Path) -> Any:
    """Parse a JSON file, naming it when it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunDirError("the file must exist", seen=str(path)) from None
    except json.JSONDecodeError as error:
        raise RunDirError(f"the file must hold JSON ({error})", seen=str(path)) from None


def append_row(run: RunDir, path: Path, row: dict[str, Any]) -> None:
    """Append a line to one of the run's line files; what a crash left of the last line goes, which is an event."""
    run.require_ours()
    if num_bytes := jsonl.append_row(path, row):
        append_event(run, "file/mended", file=path.name, cut_off_bytes=num_bytes)


def append_event(run: RunDir, kind: str, **fields: Any) -> None:
    """Add an event: `kind` is `area/what`, the time is seconds since the epoch. A full disk costs the event alone."""
    row = {"time": round(time.time(), 3), "kind": kind, **fields}
    try:
        append_row(run, run.events, row)
    except (LeaseError, OSError) as error:
        say(f"an event could not be written ({error}; {describe_disk(run.path)}): {json.dumps(row)}")


def report_damage(run: RunDir) -> None:
    """Tell of damaged lines in the line files, in an event each; they stay, and are passed over."""
    for path in (run.events, run.metrics, run.samples):
        if numbers := jsonl.find_damaged(path):
            append_event(run, "file/damaged", file=path.name, lines=numbers[:_MOST_TOLD], num_lines=len(numbers))
