"""The turn log: turns of episodes on disk as they finish, so that a kill loses no finished turn.

    run directory/journal/rollout-12-00000000000003e8.journal        one file per batch of episodes

    a reply finishes  -> its line, before the environment gets the reply
    a step finishes   -> its line, before the next reply is requested
    every second      -> fsync in a thread: a killed process loses nothing, a lost node loses this second

To open a batch again, the log truncates the file at the first damaged line, drops turns of weights that no checkpoint
holds, and rewrites it. A checkpoint holds a copy of the batches in flight.
"""

import contextlib
import functools
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.errors import ConfigError
from slurm_rl.rollout.turn_log_format import (
    History,
    Row,
    build_histories,
    compute_checksum,
    parse_lines,
    render_histories,
    render_row,
)
from slurm_rl.run_dir.io_errors import annotate_path
from slurm_rl.run_dir.run_dir import write_bytes

FOLDER = "journal"
PROGRAM = "program"
"""`Facts.resume` of agents: an agent restarts, and gets logged replies for the same requests."""
_SUFFIX = ".journal"
_SYNC_S = 1.0


@dataclass
class BatchLog:
    """The log of one batch; `histories` holds its content at the time of opening."""

    path: Path
    histories: dict[tuple[int, int], History]
    _file: Any
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, lines: Iterable[bytes]) -> None:
        """Append lines; they survive this process at once, and its node after the next fsync."""
        data = b"".join(lines)
        with self._lock, annotate_path(self.path):
            if self._file.closed or not data:
                return
            end = self._file.tell()
            try:
                # A full disk accepts a part without an error and raises on the rest.
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):  # lines after half a line would be invalid
                    self._file.truncate(end)
                raise

    def sync(self) -> None:
        with self._lock:
            if self._file.closed:
                return
            copy = os.fdopen(os.dup(self._file.fileno()), "ab", buffering=0)
        # Outside the lock: a shared disk may be slow.
        with copy, annotate_path(self.path):
            os.fsync(copy.fileno())

    def close(self) -> None:
        with self._lock, annotate_path(self.path):
            self._file.close()


class TurnLog:
    """All batch logs of a run.

    Args:
        facts: properties of the environment class.
        keeps_all: keep turns of weights that were never saved (lockstep order samples every reply again and compares);
            never for agents.
        staleness: a batch of step t starts with the weights of step t - staleness.
        report: called with the kind and the fields of an event.
        require_ours: raises if another controller owns the run.
    """

    def __init__(
        self,
        folder: Path,
        facts: Facts,
        *,
        keeps_all: bool,
        staleness: int = 0,
        report: Callable[..., None],
        require_ours: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder, self.facts, self.keeps_all, self.staleness = folder, facts, keeps_all, staleness
        self.report, self.require_ours = report, require_ours
        self.version = 0
        self._open: dict[Path, BatchLog] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sync, name="turn-log", daemon=True)

    def resume(self, version: int, copy: Path | None) -> None:
        """Continue from a checkpoint: ignore turns of newer weights, and restore missing files from its copies.

        Args:
            version: version of its weights, 0 without a checkpoint.
            copy: its folder.
        """
        self.version = version
        for saved in sorted((copy / FOLDER).glob(f"*{_SUFFIX}")) if copy is not None else ():
            path = self.folder / saved.name
            if not path.is_file() or path.stat().st_size < saved.stat().st_size:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_bytes(path, saved.read_bytes())
        # Also batches that started with lost weights: the run samples these steps again with other weights.
        self.prune(math.inf, version)

    def open(self, spec: SamplingSpec, prompts: Sequence[EncodedPrompt], facts_now: Facts | None = None) -> BatchLog:
        """Open the log of a batch and read its content.

        Args:
            facts_now: properties of this batch's environments, if its source has its own.

        Raises:
            ConfigError: its episodes are snapshots of another environment.
        """
        self.require_ours()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{spec.batch}-{spec.seed:016x}{_SUFFIX}"
        checksum = functools.reduce(lambda before, prompt: compute_checksum(prompt.token_ids, before), prompts, 0)
        facts = {"prompts": checksum, "members": spec.num_completions, "env": list(facts_now or self.facts)}
        histories = self._read(path, facts)
        header = render_row(Row(batch={"name": spec.batch, "seed": spec.seed, **facts}))
        write_bytes(path, b"".join([header, *render_histories(histories)]))
        if histories:
            turns = sum(len(history.replies) for history in histories.values())
            self.report("journal/opened", batch=spec.batch, episodes=len(histories), turns=turns)
        batch = BatchLog(path, histories, path.open("ab", buffering=0))
        self._open[path] = batch
        if self._thread.ident is None:
            self._thread.start()
        return batch

    def _read(self, path: Path, facts: dict[str, Any]) -> dict[tuple[int, int], History]:
        data = path.read_bytes() if path.is_file() else b""
        rows, end = parse_lines(data)
        if end < len(data):
            self.report("journal/cut", file=path.name, kept=end, dropped=len(data) - end)
        if not rows:
            return {}
        before = rows[0].batch or {}
        if any(before.get(name) != facts[name] for name in ("prompts", "members")):
            self.report("journal/dropped", file=path.name, cause="its prompts differ")
            return {}
        keeps_all = self.keeps_all and facts["env"][0] != PROGRAM
        histories = build_histories(rows, None if keeps_all else self.version)
        if before["env"] != facts["env"] and any(history.replies for history in histories.values()):
            self._check_change(path, before["env"], facts["env"])
        return {key: history for key, history in histories.items() if history.replies or history.end is not None}

    def _check_change(self, path: Path, before: list[str], now: list[str]) -> None:
        if "snapshot" in (before[0], now[0]):
            raise ConfigError(
                "a snapshot must be restored by the environment class that wrote it",
                seen=f"resume and version {before} as the episodes began, {now} now",
                where=str(path),
                action="restore the class; or give both the same `version`, if it can restore the snapshot; or move "
                "that file away, and its episodes start again",
            )
        self.report("journal/environment_changed", file=path.name, before=before, now=now)

    def prune(self, step: float, saved: int) -> None:
        """Remove batches of steps before `step` that no resumed run needs.

        Args:
            step: next step to train.
            saved: step of the newest complete checkpoint.
        """
        for path in self.folder.glob(f"*{_SUFFIX}"):
            batch_step = _step_of(path)
            # After the checkpoint, a resumed run needs the batches that start with weights it will have.
            is_needed = batch_step >= saved if self.keeps_all else saved <= batch_step <= saved + self.staleness
            if batch_step < step and not is_needed:
                if batch := self._open.pop(path, None):
                    batch.close()
                path.unlink(missing_ok=True)

    def save(self, folder: Path, step: int) -> None:
        """Copy the batches in flight in `step` into a checkpoint."""
        for path in [path for path in list(self._open) if _step_of(path) >= step]:
            with annotate_path(folder):
                (folder / FOLDER).mkdir(exist_ok=True)
                shutil.copyfile(path, folder / FOLDER / path.name)

    def close(self) -> None:
        """Flush everything to disk and ignore later writes."""
        self._closing.set()
        for batch in self._open.values():
            with contextlib.suppress(OSError):
                batch.sync()
            batch.close()

    def _sync(self) -> None:
        while not self._closing.wait(_SYNC_S):
            for batch in list(self._open.values()):
                with contextlib.suppress(OSError):  # the next write raises it
                    batch.sync()


def _step_of(path: Path) -> int:
    """Return 12 for `rollout-12-00000000000003e8.journal`."""
    return int(path.stem.split("-")[-2])
