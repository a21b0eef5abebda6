"""The journal: turns of episodes on disk as they end, so that after a kill none that has ended is lost.

    run directory/journal/rollout-12-00000000000003e8.journal        one file a batch of episodes

    a reply ends    -> its line, before its environment hears of it
    a step ends     -> its line, before the next reply is asked for
    about a second  -> fsync, in a thread: a process that is killed loses nothing, a node that is lost this second

What is there when a batch is opened again is cut at the first damaged line, freed of turns of weights that no
checkpoint has, and written anew. A checkpoint holds a copy of what is under way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_rl.data.groups import SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.facts import Facts
from slurm_rl.errors import ConfigError
from slurm_rl.rollout.journal_lines import (
    History,
    build_histories,
    parse_lines,
    render_header,
    render_histories,
)
from slurm_rl.run_dir.disk import naming
from slurm_rl.run_dir.run_dir import write_bytes

FOLDER = "journal"
PROGRAM = "program"
"""In the place of `Facts.resume`: a program begins anew, and hears again what is recorded of its own requests."""
_SUFFIX = ".journal"
_SYNC_S = 1.0


@dataclass
class BatchJournal:
    """The journal of one batch; `histories` is what it held when it was opened."""

    path: Path
    histories: dict[tuple[int, int], History]
    _file: Any
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_synced: bool = True

    def write(self, lines: Iterable[bytes]) -> None:
        """Append; what is written outlives this process, and a second later its node."""
        data = b"".join(lines)
        with self._lock, naming(self.path):
            if self._file.closed or not data:
                return
            whole = self._file.tell()
            self._is_synced = False
            try:
                # A full disk takes a part without a word; asked to take the rest, it says that it is full.
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):  # what follows a half line would not count
                    self._file.truncate(whole)
                raise

    def sync(self) -> None:
        with self._lock:
            if self._file.closed or self._is_synced:
                return
            number, self._is_synced = os.dup(self._file.fileno()), True
        # Not under the lock: a shared disk may take its time.
        try:
            with naming(self.path):
                os.fsync(number)
        finally:
            os.close(number)

    def close(self) -> None:
        with self._lock, naming(self.path):
            self._file.close()


class Journal:
    """The journals of a run.

    Args:
        facts: what the environments' class says of itself.
        keeps_all: turns of weights that were never saved count too, since whoever opens a batch samples every reply
            again and compares; those of programs never do.
        staleness: a batch of step t is begun with the weights of step t less this.
        report: called with events and their fields.
        require_ours: raises when another controller has the run.
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
        self._open: dict[str, BatchJournal] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def resume(self, version: int, copy: Path | None) -> None:
        """Go on from a checkpoint: turns of newer weights do not count, and its copies replace what is not here.

        Args:
            version: of its weights, 0 where there is no checkpoint.
            copy: its folder.
        """
        self.version = version
        for saved in sorted((copy / FOLDER).glob(f"*{_SUFFIX}")) if copy is not None else ():
            here = self.folder / saved.name
            if not here.is_file() or here.stat().st_size < saved.stat().st_size:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_bytes(here, saved.read_bytes())
        self.prune(version, version)
        if not self.keeps_all:
            # What was begun with weights that are gone: the run comes to these steps again, with others of that number.
            for path in self.folder.glob(f"*{_SUFFIX}"):
                if _step_of(path) > version + self.staleness:
                    path.unlink(missing_ok=True)

    def open(
        self, spec: SamplingSpec, prompts: Sequence[EncodedPrompt], facts_now: Facts | None = None
    ) -> BatchJournal:
        """The journal of a batch, with what it holds.

        Args:
            facts_now: of this batch's environments, where a source has its own.

        Raises:
            ConfigError: its episodes under way are snapshots of another environment.
        """
        self.require_ours()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{spec.batch}-{spec.seed:016x}"
        path = self.folder / f"{name}{_SUFFIX}"
        facts = {"prompts": _checksum(prompts), "members": spec.num_completions, "env": list(facts_now or self.facts)}
        histories = self._read(path, facts)
        lines = [render_header(spec.batch, spec.seed, facts), *render_histories(histories)]
        write_bytes(path, b"".join(lines))
        if histories:
            turns = sum(len(history.replies) for history in histories.values())
            self.report("journal/opened", batch=spec.batch, episodes=len(histories), turns=turns)
        batch = BatchJournal(path, histories, path.open("ab", buffering=0))
        self._open[name] = batch
        if self._thread is None:
            self._thread = threading.Thread(target=self._sync, name="journal", daemon=True)
            self._thread.start()
        return batch

    def _read(self, path: Path, facts: dict[str, Any]) -> dict[tuple[int, int], History]:
        data = path.read_bytes() if path.is_file() else b""
        rows, end = parse_lines(data)
        if end < len(data):
            self.report("journal/cut", file=path.name, kept=end, dropped=len(data) - end)
        if not rows:
            return {}
        before = rows[0]
        if any(before.get(name) != facts[name] for name in ("prompts", "members")):
            self.report("journal/dropped", file=path.name, cause="it is of other prompts")
            return {}
        keeps_all = self.keeps_all and facts["env"][0] != PROGRAM
        histories = build_histories(rows, None if keeps_all else self.version)
        if before["env"] != facts["env"] and any(history.replies for history in histories.values()):
            self._judge_change(path, before["env"], facts["env"])
        return {key: history for key, history in histories.items() if history.replies or history.end is not None}

    def _judge_change(self, path: Path, before: list[str], now: list[str]) -> None:
        if "snapshot" in (before[0], now[0]):
            raise ConfigError(
                "the environment of a snapshot must be the one that is to restore it",
                seen=f"resume and version {before} as the episodes began, {now} now",
                where=str(path),
                action="put the class back; or give both one `version`, where it can; or move that file away, and its "
                "episodes begin anew",
            )
        self.report("journal/environment_changed", file=path.name, before=before, now=now)

    def prune(self, step: int, saved: int) -> None:
        """Remove what nothing goes on from: batches of steps before `step` that a whole checkpoint has behind it.

        Args:
            step: of the run, the next to be trained.
            saved: step of the newest whole checkpoint.
        """
        for path in self.folder.glob(f"*{_SUFFIX}"):
            batch = self._open.get(path.stem)
            of = _step_of(path)
            # Of those after it a resumed run wants what was begun with weights that it will have.
            is_wanted = of >= saved if self.keeps_all else saved <= of <= saved + self.staleness
            if of < step and not is_wanted:
                if batch is not None:
                    batch.close()
                    del self._open[path.stem]
                path.unlink(missing_ok=True)

    def save(self, folder: Path, step: int) -> None:
        """Copy what is under way in `step` into a checkpoint."""
        for name, batch in list(self._open.items()):
            if _step_of(batch.path) >= step:
                with naming(folder):
                    (folder / FOLDER).mkdir(exist_ok=True)
                    shutil.copyfile(batch.path, folder / FOLDER / f"{name}{_SUFFIX}")

    def close(self) -> None:
        """All is on disk, and nothing is written from here on."""
        self._closing.set()
        for batch in self._open.values():
            with contextlib.suppress(OSError):
                batch.sync()
            batch.close()

    def _sync(self) -> None:
        while not self._closing.wait(_SYNC_S):
            for batch in list(self._open.values()):
                with contextlib.suppress(OSError):  # whoever writes next hears of it
                    batch.sync()


def _step_of(path: Path) -> int:
    """Of `rollout-12-00000000000003e8.journal` 12."""
    return int(path.stem.split("-")[-2])


def _checksum(prompts: Sequence[EncodedPrompt]) -> int:
    found = 0
    for prompt in prompts:
        found = zlib.crc32(array("i", prompt.token_ids).tobytes(), found)
    return found
