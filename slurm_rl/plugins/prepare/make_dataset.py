"""Prepares one data set: a no-op when its folder is whole, else fetch, check, write, and the manifest last."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.prepare.dataset import BadRows, DatasetRecipe, Workspace
from slurm_rl.plugins.prepare.download import fetch
from slurm_rl.plugins.prepare.hf_hub import Kind, Wanted, is_offline, list_cached, list_snapshot
from slurm_rl.plugins.prepare.manifest import NAME, Manifest, Output, Source, load_manifest, sha256_of
from slurm_rl.plugins.prepare.verl_rows import build_for_verl
from slurm_rl.run_dir import disk

_LOCK = ".prepare.lock"
_SOURCES = ".sources"
Say = Callable[[str], None]


def prepare_dataset(
    recipe: DatasetRecipe, folder: Path, revision: str, leave_out_bad_rows: bool, say: Say, *, for_verl: bool = False
) -> Manifest:
    """Make `folder` the data set.

    Args:
        for_verl: as verl's parquet, by `recipe.verl`; else as the rows of our own trainer.

    Raises:
        ConfigError, DataError: a wrong name, a bad row or image (by number and name), offline without the files.
        PrepareError: the download or the disk failed; what came stays for the next call.
    """

    def build(_: Manifest | None) -> Manifest:
        wanted = Wanted(patterns=recipe.files, required=recipe.files)
        fetched = fetch_files(recipe.repo, "dataset", revision, wanted, folder / _SOURCES, say)
        bad_rows = BadRows(leave_out_bad_rows)
        work = Workspace(folder=folder, sources=fetched.paths, bad_rows=bad_rows, say=say)
        form = recipe.verl if for_verl else None
        outputs = recipe.build(work) if form is None else build_for_verl(recipe.name, form, work)
        left_out = bad_rows.found + bad_rows.unscorable
        return fetched.make_manifest(recipe.name, folder, revision, outputs, left_out)

    return make_folder(folder, revision, say, build)


def make_folder(folder: Path, revision: str, say: Say, build: Callable[[Manifest | None], Manifest]) -> Manifest:
    """The manifest of the folder: as it is when it is whole, else what `build` makes, given the one from before.

    Raises:
        ConfigError: the folder is not ours, or another `prepare` works in it.
        Exception: what `build` raises.
    """
    with open_folder(folder):
        before = load_manifest(folder)
        change = before.find_change(folder, revision) if before else ""
        if before and not change:
            say(f"already there: {folder}")
            return before
        if before:
            say(f"made again, since {change}")
            (folder / NAME).unlink()
        manifest = build(before)
        manifest.save()
        shutil.rmtree(folder / _SOURCES, ignore_errors=True)
        return manifest


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[None]:
    """Hold a folder of our own; two at once would write over each other.

    Raises:
        ConfigError: it holds something else, cannot be written, or another `prepare` works in it.
    """
    lock = folder / _LOCK
    if folder.is_dir() and not lock.exists() and any(folder.iterdir()):
        raise ConfigError(
            "prepare needs a folder of its own",
            seen=f"{folder}, with other files in it",
            action="choose another --root",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock.open("a")
    except OSError as error:
        raise ConfigError(
            "--root must be a folder that can be written", seen=f"{folder} ({error.strerror})", action="choose another"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "one prepare at a time may work in a folder", seen=f"{lock} is held", action="wait for the other"
            ) from None
        except OSError as error:
            # Lustre mounted noflock has none.
            disk.say(f"{lock} cannot be locked ({error.strerror}): see that no other prepare works there")
        yield


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Files of a repository on this machine."""

    commit: str
    paths: dict[str, Path]
    sources: list[Source]

    def make_manifest(
        self, name: str, folder: Path, revision: str, outputs: list[Output], left_out: Sequence[str] = ()
    ) -> Manifest:
        """Of a folder that these files became."""
        return Manifest(name, str(folder), revision, self.commit, self.sources, outputs, list(left_out))


def fetch_files(repo: str, kind: Kind, revision: str, wanted: Wanted, folder: Path, say: Say) -> Fetched:
    """Bring the wanted files below `folder`; offline, name them in the library's cache.

    Raises:
        ConfigError, PrepareError: see `list_snapshot`, `list_cached`, `fetch`.
    """
    if is_offline():
        commit, cached = list_cached(repo, kind, revision, wanted)
        sources = [
            Source(repo=repo, file=name, size=path.stat().st_size, sha256=sha256_of(path))
            for name, path in cached.items()
        ]
        return Fetched(commit=commit, paths=cached, sources=sources)
    snapshot = list_snapshot(repo, kind, revision)
    names = set(wanted.select([file.name for file in snapshot.files], f"the {kind} {repo}"))
    files = [file for file in snapshot.files if file.name in names]
    say(f"{repo} at {snapshot.commit[:12]}: {len(files)} files, {sum(file.size for file in files) / 1e9:.2f} GB")
    paths = {file.name: folder / file.name for file in files}
    for file in files:
        fetch(snapshot, file, paths[file.name], revision)
    sources = [Source(repo=repo, file=f.name, size=f.size, sha256=f.sha256 or sha256_of(paths[f.name])) for f in files]
    return Fetched(commit=snapshot.commit, paths=paths, sources=sources)
