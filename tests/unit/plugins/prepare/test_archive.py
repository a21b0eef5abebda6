import gzip
import io
import random
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from slurm_rl.errors import DataError, PrepareError
from slurm_rl.plugins.prepare.archive import extract_archive


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in/folder").mkdir(parents=True)
    return tmp_path / "in/folder"


def test_files_keep_bytes_and_get_our_mode(folder: Path, tmp_path: Path) -> None:
    content = {"./a/1.txt": b"one", "b.txt": b"", "c/d/e.txt": b"x" * 3_000_000}
    members = [(entry(name, mode=0o4777), data) for name, data in content.items()]
    archive = make_tar(tmp_path / "a", (entry("a", tarfile.DIRTYPE), b""), *members)
    assert extract_archive(archive, folder) == (3, 3_000_003)
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {name.removeprefix("./"): data for name, data in content.items()}
    assert {path.stat().st_mode & 0o7111 for path in folder.rglob("*.txt")} == {0}


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil-of-slurm-rl", "a\\..\\evil", ".", ""])
def test_member_outside_folder_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a", (entry(name), b"evil"))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="must be a regular file inside the folder"):
        extract_archive(archive, folder)
    assert set(tmp_path.rglob("*")) == before
    assert not Path("/tmp/evil-of-slurm-rl").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_of_tar_are_refused_by_name(kind: bytes, folder: Path, tmp_path: Path) -> None:
    link = entry("a/link", kind, link="../../../etc")
    archive = make_tar(tmp_path / "a", (link, b""), (entry("a/link/passwd"), b"evil"))
    with pytest.raises(DataError, match=r"'a/link'.*a link or a device"):
        extract_archive(archive, folder)
    assert not (folder / "a/link").exists()


def test_bounds_hold_for_bytes_memory_and_files(folder: Path, tmp_path: Path) -> None:
    bomb = make_tar(tmp_path / "bomb", (entry("zeros"), bytes(30_000_000)))
    assert bomb.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"'zeros'.*more than 1000000 bytes"):
            extract_archive(bomb, folder, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert (folder / "zeros").stat().st_size <= 1_000_000
    many = make_tar(tmp_path / "many", *[(entry(str(n)), b"") for n in range(4)])
    with pytest.raises(DataError, match=r"'3'.*more than 3 files"):
        extract_archive(many, folder, max_files=3)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_archive_is_named(share: float, folder: Path, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(100_000)
    archive = make_tar(tmp_path / "images.tar.gz", *[(entry(f"{n}.bin"), noise) for n in range(5)])
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(PrepareError, match=r"images\.tar\.gz must be a complete"):
        extract_archive(archive, folder)


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_name_of_file_and_folder_is_refused(names: tuple[str, str], folder: Path, tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", *[(entry(name), b"x") for name in names])
    with pytest.raises(DataError, match="a file and a folder at once"):
        extract_archive(archive, folder)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_huge_header_takes_no_memory(kind: bytes, folder: Path, tmp_path: Path) -> None:
    """A few kilobytes of compressed zeros that tarfile would read as one string of 300 MB."""
    archive = tmp_path / "a.tar.gz"
    info = entry("bomb", kind)
    info.size = 300_000_000
    with gzip.open(archive, "wb", compresslevel=1) as out:
        out.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(300):
            out.write(bytes(1_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(PrepareError, match="a header of 300000000 bytes"):
            extract_archive(archive, folder)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_global_headers_are_bounded(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb", compresslevel=1) as out:
        for number in range(40):
            out.write(tarfile.TarInfo.create_pax_global_header({f"key{number}": "x" * 100_000}))
    with pytest.raises(PrepareError, match="a header of"):
        extract_archive(archive, folder)
