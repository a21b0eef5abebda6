"""Atomic checkpoints in a folder. Standard library only.

    store = CheckpointStore(run.checkpoints)
    folder = store.begin(40)             an empty hidden folder; every rank writes its own files into it
    store.commit(40, {"step": 40})     one process: fsync, manifest.json with hashes, rename to step-40
    store.latest()                       the newest one that verifies; store.skipped lists the others with reasons
    store.prune(keep=2)

One rename, after all bytes are on disk, makes a checkpoint valid. Nothing is removed before a newer one verifies.
"""

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.background import sum_file
from slurm_rl.run_dir.io_errors import describe_disk, fsync_path, next_action
from slurm_rl.run_dir.run_dir import write_json

MANIFEST = "manifest.json"
STEP_NAME = re.compile(r"step-(\d+)")
# Files hashed at once: a hash runs at 1-2 GB/s on one core, a parallel file system reads faster.
_HASH_THREADS = 8


HashFiles = Callable[[Sequence[Path]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint on disk that was verified when this object was made."""

    step: int
    path: Path
    meta: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run; one process at a time writes.

    Args:
        require_ours: raises if another process owns the run; called right before a checkpoint gets or loses its name.
        hash_files: returns the hash of each file, or the reason why it has none, for `latest` and `at`.
    """

    def __init__(
        self,
        root: Path,
        require_ours: Callable[[], None] = lambda: None,
        hash_files: HashFiles | None = None,
    ) -> None:
        self.root, self.require_ours, self.hash_files = root, require_ours, hash_files or hash_here
        self._begun: dict[int, Path] = {}
        self._committed: Path | None = None
        self.skipped: list[str] = []
        """Reasons why `latest` skipped newer folders."""

    def begin(self, step: int) -> Path:
        """Create the empty folder for all ranks; remove leftovers of a crash."""
        try:
            self.require_ours()
            self.root.mkdir(parents=True, exist_ok=True)
            for stale in self.root.glob(".step-*.tmp-*"):
                # A process that lost the run may still write there; its rename then fails.
                shutil.rmtree(stale, ignore_errors=True)
            folder = self._begun[step] = self._beside(step)
            folder.mkdir()
        except OSError as error:
            raise cannot_write(self.root, error) from error
        return folder

    def discard(self, step: int) -> None:
        """Remove an unfinished checkpoint to free its space."""
        if folder := self._begun.pop(step, None):
            shutil.rmtree(folder, ignore_errors=True)

    def commit(self, step: int, meta: dict[str, Any]) -> Checkpoint:
        """Rename the begun folder after every byte is on disk; keep an existing one that verifies.

        Args:
            meta: JSON, read back as `Checkpoint.meta`.

        Raises:
            CheckpointError: nothing was begun, or the file system refuses; older checkpoints are untouched.
        """
        folder = self._begun.pop(step, None)
        if folder is None or not folder.is_dir():
            raise CheckpointError(
                "begin(step) must come before commit(step), by one process at a time",
                seen=f"no begun folder of step {step} in {self.root}",
                action="look for a second trainer that writes to this run",
            )
        final = self.root / f"step-{step}"
        try:
            body = {"format": 1, "step": step, "meta": meta, "files": _describe_files(folder)}
            write_json(folder / MANIFEST, {"sha256": _hash_json(body), "body": body})
            for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
                fsync_path(path)
            self.require_ours()
            if final.exists():
                existing, _ = _verify(final, hash_here)
                if existing:
                    shutil.rmtree(folder)
                    return existing
                final.rename(self._beside(step))  # corrupt; `begin` will remove it
            folder.rename(final)
            fsync_path(self.root)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise cannot_write(folder, error) from error
        self._committed = final
        return Checkpoint(step=step, path=final, meta=meta)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that verifies; reads all of its bytes."""
        self.skipped = []
        for path in self._newest_first():
            checkpoint, reason = _verify(path, self.hash_files)
            if checkpoint:
                return checkpoint
            self.skipped.append(f"{path.name}: {reason}")
        return None

    def at(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of this step if it verifies; `skipped` has the reason otherwise."""
        path = self.root / f"step-{step}"
        checkpoint, reason = _verify(path, self.hash_files)
        self.skipped = [] if reason is None else [f"{path.name}: {reason}"]
        return checkpoint

    def prune(self, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Remove all but the newest `keep` and `spare` checkpoints, if the newest is sound; return the steps.

        One that this process has just committed is, and is not read again.
        """
        paths = self._newest_first()
        if not paths or (paths[0] != self._committed and _verify(paths[0], hash_here)[0] is None):
            return []
        removed = []
        for path in (path for path in paths[max(keep, 1) :] if _step_of(path) not in spare):
            self.require_ours()
            # Renamed first: a kill halfway leaves no half checkpoint under a checkpoint's name.
            doomed = self._beside(_step_of(path))
            try:
                path.rename(doomed)
                shutil.rmtree(doomed)
            except OSError as error:
                raise CheckpointError(
                    f"older checkpoints must be removable ({error.strerror}; {describe_disk(path)})",
                    seen=str(path),
                    action=f"{next_action(error)}; newer ones are complete",
                ) from error
            removed.append(_step_of(path))
        return removed

    def _newest_first(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return sorted((p for p in self.root.iterdir() if STEP_NAME.fullmatch(p.name)), key=_step_of, reverse=True)

    def _beside(self, step: int) -> Path:
        return self.root / f".step-{step}.tmp-{secrets.token_hex(4)}"


def _verify(folder: Path, hash_files: HashFiles) -> tuple[Checkpoint, None] | tuple[None, str]:
    """Return the checkpoint, or the reason why it is invalid."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        body = manifest["body"]
        if _hash_json(body) != manifest["sha256"]:
            return None, f"{MANIFEST} does not match its own hash"
        if body["step"] != _step_of(folder):
            return None, f"holds step {body['step']}"
        expected, found = body["files"], _find_files(folder)
        if reason := _compare_sizes(expected, found):
            return None, reason
        for name, sha256 in zip(found, hash_files(list(found.values())), strict=True):
            if sha256 != expected[name]["sha256"]:
                return None, f"{name} {sha256 if ':' in sha256 else 'has other bytes than were written'}"
        return Checkpoint(step=body["step"], path=folder, meta=body["meta"]), None
    except OSError as error:
        return None, f"cannot be read ({error})"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{MANIFEST} is broken ({type(error).__name__}: {error})"


def _find_files(folder: Path) -> dict[str, Path]:
    """Return every file below `folder` except the manifest, by relative name."""
    paths = sorted(p for p in folder.rglob("*") if not p.is_dir() and p != folder / MANIFEST)
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _compare_sizes(expected: dict[str, Any], found: dict[str, Path]) -> str | None:
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong to it"
        if (size := found[name].stat().st_size) != expected[name]["size"]:
            return f"{name} has {size} bytes in place of {expected[name]['size']}"
    return None


def _describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Sync the files, and return their sizes and the hashes that their writers left; hash the others."""
    found = _find_files(folder)
    sums = {path: sum_file(path) for path in found.values() if sum_file(path) in found.values()}

    def describe(path: Path) -> dict[str, Any]:
        fsync_path(path)
        return {"size": path.stat().st_size, "sha256": sums[path].read_text()} if path in sums else describe_file(path)

    names = [name for name, path in found.items() if path not in sums.values()]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        described = dict(zip(names, pool.map(describe, [found[name] for name in names]), strict=True))
    for known in sums.values():
        known.unlink()
    return described


def hash_here(paths: Sequence[Path]) -> list[str]:
    """Return the hash of each file, or the reason why it cannot be read."""

    def hash_one(path: Path) -> str:
        try:
            return hash_file(path)
        except OSError as error:
            return f"unreadable: {error}"

    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        return list(pool.map(hash_one, paths))


def describe_file(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": hash_file(path)}


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"a checkpoint must be written completely ({error.strerror or error}; {describe_disk(path)})",
        seen=str(path),
        action=f"{next_action(error)}; older checkpoints are untouched",
    )
