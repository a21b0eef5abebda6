"""Prepare one data set: download, check and write it, the manifest last; do nothing if the folder is complete."""

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.prepare.dataset import BadRows, DatasetRecipe, Workspace
from slurm_rl.plugins.prepare.hf_hub import METADATA, Wanted, fetch_files
from slurm_rl.plugins.prepare.manifest import NAME, Manifest, load_manifest
from slurm_rl.plugins.prepare.verl_rows import build_for_verl
from slurm_rl.run_dir import io_errors

_LOCK = ".prepare.lock"
_SOURCES = ".sources"
Say = Callable[[str], None]


def prepare_dataset(
    recipe: DatasetRecipe, folder: Path, revision: str, leave_out_bad_rows: bool, say: Say, *, for_verl: bool = False
) -> Manifest:
    """Write the data set into `folder`.

    Args:
        for_verl: write verl's parquet files instead of the rows of our own trainer.

    Raises:
        ConfigError, DataError: a wrong name, a bad row or image (by number and name), offline without the files.
        PrepareError: the download or the disk failed; the next call keeps complete files.
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
    """Return the manifest of a complete folder; otherwise call `build` with the old manifest and save the new one.

    Raises:
        ConfigError: the folder has other files, or another `prepare` uses it.
        Exception: errors of `build`.
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
        for scratch in (_SOURCES, METADATA):
            shutil.rmtree(folder / scratch, ignore_errors=True)
        return manifest


@contextlib.contextmanager
def open_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for this process.

    Raises:
        ConfigError: it has other files, cannot be written, or another `prepare` uses it.
    """
    lock = folder / _LOCK
    if folder.is_dir() and not lock.exists() and any(folder.iterdir()):
        raise ConfigError(
            "prepare needs its own folder",
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
                "only one prepare at a time may write to a folder", seen=f"{lock} is held", action="wait for the other"
            ) from None
        except OSError as error:
            # Lustre mounted with noflock has no locks.
            io_errors.log_to_stderr(
                f"{lock} cannot be locked ({error.strerror}): make sure that no other prepare uses it"
            )
        yield
