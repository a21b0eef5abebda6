import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.engines import ImageConfig
from slurm_rl.plugins.image.rootfs import render_rc, unpack_root, write_layout


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644, data: bytes = b"") -> object:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(data)
    info.uid = info.gid = 4321
    return info, data


def tar_of(*members: object) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for info, data in members:  # type: ignore[misc]
            tar.addfile(info, io.BytesIO(data))
    stream.seek(0)
    return stream


def test_files_links_and_modes_arrive_and_devices_do_not(tmp_path: Path) -> None:
    unpack_root(
        tar_of(
            member("./", tarfile.DIRTYPE, mode=0o755),
            member("./usr", tarfile.DIRTYPE, mode=0o555),
            member("./usr/tool", mode=0o4755, data=b"tool"),
            member("/lib", tarfile.SYMTYPE, "usr"),
            member("usr/again", tarfile.LNKTYPE, "usr/tool", mode=0o4755),
            member("dev/null", tarfile.CHRTYPE),
            member("run/pipe", tarfile.FIFOTYPE),
            member("shadow", mode=0, data=b"closed"),
        ),
        tmp_path,
    )
    assert (tmp_path / "lib/again").read_bytes() == b"tool"
    assert stat.S_IMODE((tmp_path / "usr/tool").stat().st_mode) == 0o4755
    assert stat.S_IMODE((tmp_path / "usr").stat().st_mode) == 0o555
    assert stat.S_IMODE((tmp_path / "shadow").stat().st_mode) == 0o400
    assert (tmp_path / "usr/tool").stat().st_uid == os.getuid()
    assert not [path for path in tmp_path.rglob("*") if path.name in ("null", "pipe")]


def test_tar_paths_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    hostile = [
        [member("../outside/file", data=b"theirs")],
        [member("a/../../outside/file", data=b"theirs")],
        [member("a", tarfile.SYMTYPE, str(outside)), member("a/file", data=b"theirs")],
        [member("a", tarfile.LNKTYPE, "../outside/file")],
        [member("a", tarfile.SYMTYPE, str(outside)), member("b", tarfile.LNKTYPE, "a/file")],
        # A valid path is later redirected by a link.
        [
            *(member("inside", tarfile.DIRTYPE, mode=0o755), member("a", tarfile.SYMTYPE, "inside"), member("a/file")),
            *(member("a", tarfile.SYMTYPE, str(outside)), member("a/file", data=b"theirs")),
        ],
    ]
    for number, members in enumerate(hostile):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        with pytest.raises(ConfigError, match="must stay inside"):
            unpack_root(tar_of(*members), root)
    assert (outside / "file").read_text() == "mine"
    root = tmp_path / "root"
    root.mkdir()
    unpack_root(tar_of(member("a", tarfile.SYMTYPE, str(outside / "file")), member("a", data=b"theirs")), root)
    assert (root / "a").read_bytes() == b"theirs" and (outside / "file").read_text() == "mine"


def test_truncated_tar_is_error(tmp_path: Path) -> None:
    whole = tar_of(member("a", data=b"x" * 4096)).getvalue()
    for cut in (b"", b"no tar at all", whole[:2000]):
        with pytest.raises(ConfigError, match="complete tar"):
            unpack_root(io.BytesIO(cut), tmp_path)


def test_layout_keeps_environment_and_entry_point(tmp_path: Path) -> None:
    (tmp_path / "dev/pts").mkdir(parents=True)
    (tmp_path / "dev/console").touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "etc/environment").symlink_to(tmp_path / "outside")
    config = ImageConfig(("A=b c", "BAD=x\ny"), ("/entry point", "-x"), ("serve",), "/work dir")
    write_layout(tmp_path, config)
    assert (tmp_path / "etc/environment").read_text() == "A=b c\n"
    assert (tmp_path / "outside").read_text() == "mine"
    assert list((tmp_path / "dev").iterdir()) == []
    rc = (tmp_path / "etc/rc").read_text()
    assert "cd '/work dir'" in rc and "exec '/entry point' -x \"$@\"" in rc and "exec '/entry point' -x serve" in rc
    assert {"dev", "etc", "proc", "run", "sys", "tmp"} <= {path.name for path in tmp_path.iterdir()}


def test_image_without_command_starts_shell() -> None:
    assert '    exec "$@"' in render_rc(ImageConfig()) and "    exec /bin/sh" in render_rc(ImageConfig())


def test_etc_as_link_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "host").mkdir()
    (root / "etc").symlink_to(tmp_path / "host")
    with pytest.raises(ConfigError, match="/etc must be a folder"):
        write_layout(root, ImageConfig())
    assert list((tmp_path / "host").iterdir()) == []
