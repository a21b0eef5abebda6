"""Copies of checkpoints on an fsspec URL: gs://, s3://, memory://, file:// or any other fsspec protocol.

    <url>/<run>/step-40/<files>          the bytes of the checkpoint, in any order
    <url>/<run>/step-40/manifest.json    after them: size and SHA-256 of every file
    <url>/<run>/step-40/complete.json    last: SHA-256 of the manifest, signed. Without it the checkpoint is ignored.

Object stores cannot rename a folder, so the marker replaces the rename; removal deletes it first. A download verifies
all
hashes. Other folders, such as the reference model, are stored in the same way.
"""

import contextlib
import functools
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from slurm_rl.errors import CheckpointError
from slurm_rl.models.checkpoint.store import MANIFEST, STEP_NAME, describe_file
from slurm_rl.run_dir.filesystem import open_filesystem
from slurm_rl.run_dir.io_errors import annotate_path, io_error_code, next_action
from slurm_rl.run_dir.meter import measure

MARKER = "complete.json"
# Files in flight at once: one connection seldom fills the line.
_THREADS = 8
_RETRY_S = (1.0, 5.0)
"""Seconds before retries: a 503 of a bucket lasts for seconds, and training continues meanwhile."""

_KINDS = ("files", "run")

Result = TypeVar("Result")


class NotOursError(CheckpointError):
    """The copy is not signed with the run's key."""


class RemoteFolder:
    """The folder of one run on a URL; one process writes.

    Args:
        key: returns the signing key.
        verify: `download` accepts only copies signed with the key.
        retry_s: waits before a failed operation is retried.
        require_ours: raises if another process owns the run; called before a copy starts, becomes valid or is removed.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Callable[[], str],
        verify: bool = True,
        retry_s: Sequence[float] = _RETRY_S,
        require_ours: Callable[[], None] = lambda: None,
    ) -> None:
        self.url, self.key, self.verify = url.rstrip("/"), key, verify
        self.retry_s, self.require_ours = retry_s, require_ours
        self.fs, self.root = open_filesystem(self.url)

    # ---- writing ---------------------------------------------------------------------------------

    def upload(self, name: str, folder: Path, extra: Collection[Path] = ()) -> int:
        """Copy every file below `folder`, and `extra` files into `run`, to `<url>/<name>`.

        Returns:
            Bytes written; 0 if the same copy was complete.

        Raises:
            CheckpointError: a write failed, also when retried.
        """
        # The store's own manifest covers only the folder.
        files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        files = {f"files/{relative}": path for relative, path in files.items()}
        files |= {f"run/{path.name}": path for path in extra if path.is_file()}
        with ThreadPoolExecutor(_THREADS) as pool:
            described = dict(zip(files, pool.map(describe_file, files.values()), strict=True))
        manifest = json.dumps(described, sort_keys=True).encode()
        marked = {"manifest": hashlib.sha256(manifest).hexdigest(), "hmac": self._sign(name, manifest)}
        marker = json.dumps(marked).encode()
        target = f"{self.root}/{name}"
        if self._read(f"{target}/{MARKER}") == marker and self._read(f"{target}/{MANIFEST}") == manifest:
            return 0
        self.require_ours()
        self._remove_if_there(f"{target}/{MARKER}")
        size = sum(int(found["size"]) for found in described.values())

        def write(relative: str) -> None:
            self._write(f"{target}/{relative}", files[relative])
            advance(int(described[relative]["size"]))

        with measure(f"copying {name} to {self.url}", size) as advance, ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(write, files))
        self._write(f"{target}/{MANIFEST}", manifest)
        self.require_ours()
        self._write(f"{target}/{MARKER}", marker)
        return size

    def prune(self, keep: int, spare: Collection[int] = ()) -> list[int]:
        """Remove all but the newest `keep` complete checkpoints and `spare`, and older incomplete ones; return the
        steps."""
        steps = self._listed_steps()
        whole = [step for step in steps if self.is_complete(f"step-{step}")]
        kept = {*whole[: max(keep, 1)], *spare}
        # A half that is newer than all is another's upload, or the next try's.
        doomed = [step for step in steps if step not in kept and whole and step < whole[0]]
        for step in doomed:
            self.require_ours()
            self._remove_if_there(f"{self.root}/step-{step}/{MARKER}")
            self._try("removed", f"step-{step}", functools.partial(self.fs.rm, f"{self.root}/step-{step}", True))
        return doomed

    # ---- reading ---------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps with a marker, newest first; whether they are right and ours is known after `download`."""
        return [step for step in self._listed_steps() if self.is_there(f"step-{step}")]

    def is_there(self, name: str) -> bool:
        """Return whether the marker exists and matches the manifest, with any signature."""
        manifest = self._read(f"{self.root}/{name}/{MANIFEST}")
        return manifest is not None and (
            self._read_marker(name).get("manifest") == hashlib.sha256(manifest).hexdigest()
        )

    def is_complete(self, name: str) -> bool:
        """Return whether the marker exists, matches the manifest and is signed with our key."""
        return self.is_there(name) and self._is_signed(name, self._read(f"{self.root}/{name}/{MANIFEST}") or b"")

    def _read_marker(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._read(f"{self.root}/{name}/{MARKER}") or b"null")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _is_signed(self, name: str, manifest: bytes) -> bool:
        found = str(self._read_marker(name).get("hmac")).encode()
        return hmac.compare_digest(found, self._sign(name, manifest).encode())

    def _sign(self, name: str, manifest: bytes) -> str:
        # With the names of run and step: a copy of another does not count in its place.
        text = f"{self.url.rpartition('/')[2]}/{name}\n".encode() + manifest
        return hmac.new(self.key().encode(), text, hashlib.sha256).hexdigest()

    def download(self, name: str, folder: Path, run: Path) -> dict[str, Any]:
        """Download a copy: the folder's files into `folder`, the extra ones into `run`; both are new.

        Returns:
            Size and SHA-256 of the folder's files, by relative name.

        Raises:
            NotOursError: it is not signed with our key.
            CheckpointError: a file is missing or differs from the manifest.
        """
        # A writer of the bucket can also write the manifest: verify before using it.
        text = self._read(f"{self.root}/{name}/{MANIFEST}") or b""
        if self.verify and not self._is_signed(name, text):
            raise NotOursError("a copy must be signed with the key of this run", seen=f"{self.url}/{name}")
        manifest = parse_manifest(text, f"{self.url}/{name}/{MANIFEST}")

        def fetch(relative: str) -> None:
            kind, _, rest = relative.partition("/")
            target = (folder if kind == "files" else run) / rest
            source = f"{self.root}/{name}/{relative}"
            size = self._try("read", relative, lambda: self.fs.info(source)["size"])
            if size == manifest[relative]["size"]:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._try("read", relative, lambda: self._get(source, target))
            if size != manifest[relative]["size"] or describe_file(target) != manifest[relative]:
                raise CheckpointError("a copy must have the bytes that were written", seen=f"{self.url}/{name}/{rest}")
            advance(size)

        size = sum(int(found["size"]) for found in manifest.values())
        with measure(f"fetching {name} from {self.url}", size) as advance, ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fetch, manifest))
        return {name.removeprefix("files/"): found for name, found in manifest.items() if name.startswith("files/")}

    def _get(self, source: str, target: Path) -> None:
        with annotate_path(target):
            self.fs.get_file(source, str(target))

    def _listed_steps(self) -> list[int]:
        def names() -> list[str]:
            self.fs.invalidate_cache()
            try:
                return [str(path).rstrip("/").rpartition("/")[2] for path in self.fs.ls(self.root, detail=False)]
            except FileNotFoundError:
                return []

        found = [STEP_NAME.fullmatch(name) for name in self._try("listed", "", names)]
        return sorted({int(match[1]) for match in found if match}, reverse=True)

    # ---- one operation ---------------------------------------------------------------------------

    def _read(self, path: str) -> bytes | None:
        def read() -> bytes | None:
            self.fs.invalidate_cache()
            try:
                return bytes(self.fs.cat_file(path))
            except FileNotFoundError:
                return None

        return self._try("read", path, read)

    def _write(self, path: str, content: bytes | Path) -> None:
        # File systems with folders need them; on the others the write reports errors.
        with contextlib.suppress(OSError, NotImplementedError, ValueError):
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, Path):
            self._try("written", path, functools.partial(self.fs.put_file, str(content), path))
        else:
            self._try("written", path, functools.partial(self.fs.pipe_file, path, content))

    def _remove_if_there(self, path: str) -> None:
        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(path)

        self._try("removed", path, remove)

    def _try(self, what: str, path: str, operation: Callable[[], Result]) -> Result:
        for wait_s in (*self.retry_s, None):
            try:
                return operation()
            except Exception as error:  # every library behind fsspec has errors of its own
                if wait_s is None:
                    refused = io_error_code(error) is not None
                    action = next_action(error) if refused else "look at the bucket, its credentials and its quota"
                    raise CheckpointError(
                        f"{self.url} must let itself be {what} ({type(error).__name__}: {error})",
                        seen=path or self.root,
                        action=f"{action}; the checkpoints in the run directory are untouched",
                    ) from error
                time.sleep(wait_s)
        raise AssertionError("the last round returns or raises")


def parse_manifest(text: bytes, place: str) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 by name; raise CheckpointError for a name outside the folder or not from `upload`."""
    try:
        manifest = json.loads(text)
        found = {name: {"size": int(row["size"]), "sha256": str(row["sha256"])} for name, row in manifest.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"a copy's manifest must be unchanged ({type(error).__name__}: {error})", seen=place
        ) from None
    for name in found:
        kind, *parts = name.split("/")
        is_plain = all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)
        if kind not in _KINDS or not parts or not is_plain or (kind == "run" and len(parts) > 1):
            raise CheckpointError("a copy must contain only files below its own folder", seen=f"{name!r} in {place}")
    return found
