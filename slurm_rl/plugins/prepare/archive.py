"""Unpack an archive from the internet: regular files only, inside the folder, within bounds.

The archive library creates no files: every member is written here from its bytes. Links, devices, owners, modes and
absolute names of the archive never reach the disk.
"""

import gzip
import tarfile
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any

from slurm_rl.errors import DataError, PrepareError
from slurm_rl.run_dir.meter import measure

MAX_BYTES = 64 << 30
MAX_FILES = 2_000_000
_CHUNK = 1 << 20
_LONGEST_HEADER = 1 << 20
_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)


def extract_archive(
    archive: Path, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
) -> tuple[int, int]:
    """Write the members of a .tar.gz below `folder`, and return (files, bytes).

    Of two members with the same name the last one stays, as with tar.

    Args:
        folder: an existing folder; nothing is written outside it.
        max_bytes: bound on all unpacked bytes, independent of headers.

    Raises:
        DataError: a member leaves the folder, is a link or a device, or the bounds are passed; the member is named.
        PrepareError: the archive is damaged or cut off.
    """
    num_files, num_bytes = 0, 0
    try:
        with closing(_members(archive)) as members, measure(f"unpacking {archive.name}") as advance:
            for name, stream in members:
                target = _target(archive, folder, name)
                num_files += 1
                if num_files > max_files:
                    raise _refuse(archive, name, f"more than {max_files} files")
                with _create(archive, target, name) as out:
                    while chunk := stream.read(_CHUNK):
                        num_bytes += len(chunk)
                        if num_bytes > max_bytes:
                            raise _refuse(archive, name, f"more than {max_bytes} bytes unpacked")
                        out.write(chunk)
                        advance(len(chunk))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _damaged(archive, error) from None
    except OSError as error:
        if error.errno is None:  # bad data in gzip
            raise _damaged(archive, error) from None
        raise PrepareError(
            f"{archive.name} must be unpacked below {folder}", seen=str(error), action="make room, then run it again"
        ) from None
    return num_files, num_bytes


class _ShortHeaders(tarfile.TarInfo):
    """Members with bounded names and attributes: tarfile reads each such header as one string."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        is_global = self.type == tarfile.XGLTYPE
        # Attributes for all following members stay in memory.
        kept = sum(len(key) + len(value) for key, value in tar.pax_headers.items()) if is_global else 0
        if self.type in _HEADERS and self.size + kept > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes, where {_LONGEST_HEADER} are enough")
        return super()._proc_member(tar)  # type: ignore[misc]


def _members(archive: Path) -> Generator[tuple[str, IO[bytes]], None, None]:
    # A stream: a tar of 40,000 images is read once, without an index in memory. tarfile's own decompression unpacks a
    # whole read at once: 500 bytes can be gigabytes.
    with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r|", tarinfo=_ShortHeaders) as tar:
        for member in tar:
            if member.isdir():
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _refuse(archive, member.name, "a link or a device, not a regular file")
            yield member.name, stream


def _target(archive: Path, folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise _refuse(archive, name, "a path that leaves the folder")
    return folder / path


def _create(archive: Path, target: Path, name: str) -> IO[bytes]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.open("wb")
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise _refuse(archive, name, "a name that is a file and a folder at once") from None


def _refuse(archive: Path, name: str, why: str) -> DataError:
    return DataError(
        f"{archive.name}: member {name!r} must be a regular file inside the folder",
        seen=why,
        action="do not trust this archive; nothing of it was kept",
    )


def _damaged(archive: Path, error: Exception) -> PrepareError:
    return PrepareError(
        f"{archive.name} must be a complete .tar.gz",
        seen=f"{type(error).__name__}: {error}",
        action="remove it, then run it again",
    )
