"""The root file system of an image in a folder, in the layout that enroot starts.

/etc/environment holds the image's variables, /etc/rc its working directory, entry point and command; there are
no device nodes, which nobody but root could make, and which enroot mounts. See enroot's doc/image-format.md.
"""

from __future__ import annotations

import os
import shlex
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slurm_rl.errors import ConfigError
from slurm_rl.plugins.image.engines import ImageConfig
from slurm_rl.plugins.image.tools import say
from slurm_rl.run_dir.meter import Advance, measure

_MOUNT_POINTS = ("dev", "etc", "proc", "run", "sys", "tmp")


def unpack_root(stream: BinaryIO, root: Path) -> None:
    """Unpack a tar into `root`, owned by whoever runs this, without devices and pipes.

    Raises:
        ConfigError: it is no tar, ends in the middle, or has a path that leads out of `root`.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as tar, measure("image   unpacking") as advance:
            options = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
            tar.extractall(root, members=_members(tar, root, advance), **options)  # type: ignore[arg-type]
    except tarfile.TarError as error:
        raise ConfigError("the root file system must come as a whole tar", seen=str(error)) from None


def _members(tar: tarfile.TarFile, root: Path, advance: Advance) -> Iterator[tarfile.TarInfo]:
    size, number = 0, 0
    inside = os.path.realpath(root)
    for member in tar:
        if member.isdev():
            continue
        _check_inside(member, inside)
        # Else root would write as whoever owned it; the image belongs to root all over.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        # Some images close files to their own owner, who is us until mksquashfs has read them.
        member.mode |= 0o500 if member.isdir() else 0o400
        yield member
        size, number = size + member.size, number + 1
        advance(member.size)
    say(f"unpacked {size / 1e6:,.0f} MB in {number:,} files")


def _check_inside(member: tarfile.TarInfo, inside: str) -> None:
    """Through a link of the image, or by .., no file of this machine must be written."""
    for name in [member.name, member.linkname] if member.islnk() else [member.name]:
        path = os.path.normpath(f"{inside}/{name}")
        folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120 (Path is slow, and files are many)
        if ".." in name.split("/") or (path != inside and not f"{folder}/".startswith(f"{inside}/")):
            raise ConfigError("a path in an image's tar must stay inside", seen=name)
    member.name = member.name.lstrip("/") or "."
    if not member.isdir() and os.path.islink(path := f"{inside}/{member.name}"):  # noqa: PTH114
        os.unlink(path)  # noqa: PTH108


def write_layout(root: Path, config: ImageConfig) -> None:
    """Add what enroot reads."""
    root.chmod(0o755)
    for name in _MOUNT_POINTS:
        if not (root / name).exists() and not (root / name).is_symlink():
            (root / name).mkdir(mode=0o1777 if name == "tmp" else 0o755)
    _empty(root / "dev")
    if (root / "etc").is_symlink():
        raise ConfigError("the image's /etc must be a folder", seen=f"a link to {(root / 'etc').readlink()}")
    _write(root / "etc/environment", render_environment(config))
    _write(root / "etc/rc", render_rc(config))
    if not (root / "etc/rc.local").is_symlink() and not (root / "etc/rc.local").exists():
        _write(root / "etc/rc.local", "")


def render_environment(config: ImageConfig) -> str:
    """NAME=value by the line; a value with a line break cannot be said there and is left out.

    >>> render_environment(ImageConfig(env=("PATH=/opt/bin:/bin", "BAD=a\\nb")))
    'PATH=/opt/bin:/bin\\n'
    """
    return "".join(f"{line}\n" for line in config.env if "\n" not in line)


def render_rc(config: ImageConfig) -> str:
    """The script that enroot starts a container with: arguments replace the image's command, not its entry point."""
    workdir = shlex.quote(config.workdir)
    entry, command = shlex.join(config.entrypoint), shlex.join([*config.entrypoint, *config.cmd])
    return "\n".join(
        [
            f"mkdir -p {workdir} 2> /dev/null",
            f"cd {workdir} && unset OLDPWD || exit 1",
            "if [ -s /etc/rc.local ]; then",
            "    . /etc/rc.local",
            "fi",
            "if [ $# -gt 0 ]; then",
            f'    exec {entry} "$@"' if entry else '    exec "$@"',
            "else",
            f"    exec {command or '/bin/sh'}",
            "fi",
            "",
        ]
    )


def _empty(folder: Path) -> None:
    """Leave nothing in the image's /dev: what an engine put there are mounts and files in place of devices."""
    if folder.is_symlink():
        raise ConfigError("the image's /dev must be a folder", seen=f"a link to {folder.readlink()}")
    for base, folders, files in os.walk(folder, topdown=False):
        for name in files:
            (Path(base) / name).unlink()
        for name in folders:
            path = Path(base) / name
            path.unlink() if stat.S_ISLNK(path.lstat().st_mode) else path.rmdir()


def _write(path: Path, text: str) -> None:
    # A link of the image would lead out of it.
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if path.name.startswith("rc") else 0o644)
