"""Real file systems that fail on demand: full, read-only, broken, hanging. All need root."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hanging_disk import hanging_disk
from tests.small_disk import small_disk


@dataclass(frozen=True)
class Disk:
    """A file system at `path`."""

    path: Path
    spoil: Callable[[], object]
    """Start to fail."""
    mend: Callable[[], object]
    """Work again, with all files; a broken disk stays broken."""


def fill(folder: Path) -> Path:
    """Use all free bytes, as another user of the file system would."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return filler


@contextmanager
def healthy(folder: Path) -> Iterator[Disk]:
    with small_disk(folder, size_kb=1 << 18) as path:
        yield Disk(path, lambda: None, lambda: None)


@contextmanager
def full(folder: Path, size_kb: int = 1 << 18) -> Iterator[Disk]:
    """ENOSPC."""
    with small_disk(folder, size_kb=size_kb) as path:
        yield Disk(path, lambda: fill(path), (path / "filler").unlink)


@contextmanager
def read_only(folder: Path) -> Iterator[Disk]:
    """EROFS: ext4 after an error of its device, also for open files."""
    with _ext4(folder) as (path, device):

        def mend() -> None:
            _run("umount", "--lazy", str(path))
            _run("mount", device, str(path))

        yield Disk(path, lambda: _run("mount", "-o", "remount,abort", str(path)), mend)


@contextmanager
def broken(folder: Path) -> Iterator[Disk]:
    """EIO: its device is lost."""
    with _ext4(folder) as (path, device):

        def spoil() -> None:
            _run("truncate", "--size=0", str(folder / "image"))
            _run("losetup", "--set-capacity", device)

        yield Disk(path, spoil, lambda: None)


@contextmanager
def hanging(folder: Path) -> Iterator[Disk]:
    with hanging_disk(folder) as disk:
        yield Disk(disk.path, disk.hang, disk.answer)


@contextmanager
def _ext4(folder: Path) -> Iterator[tuple[Path, str]]:
    image, path = folder / "image", folder / "disk"
    path.mkdir()
    _run("truncate", "--size=256M", str(image))
    _run("mkfs.ext4", "-q", "-F", str(image))
    device = _run("losetup", "--find", "--show", str(image))
    try:
        _run("mount", device, str(path))
        try:
            yield path, device
        finally:
            _run("umount", "--lazy", str(path))
    finally:
        _run("losetup", "--detach", device)


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


DISKS = {"healthy": healthy, "full": full, "read-only": read_only, "broken": broken, "hanging": hanging}
