"""The root file system of an image in a folder, in the layout that enroot starts.

/etc/environment holds the image's variables, /etc/rc its working directory, entry point and command. Device nodes are
omitted: only root can make them, and enroot mounts them. See enroot's doc/image-format.md.
"""

import os
import shlex
import shutil
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
    """Unpack a tar into `root` without devices and pipes; all files belong to the current user.

    Raises:
        ConfigError: it is not a tar, is truncated, or has a path outside of `root`.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as tar, measure("image   unpacking") as advance:
            options = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
            tar.extractall(root, members=_members(tar, root, advance), **options)  # type: ignore[arg-type]
    except tarfile.TarError as error:
        raise ConfigError("the root file system must be a complete tar", seen=str(error)) from None


def _members(tar: tarfile.TarFile, root: Path, advance: Advance) -> Iterator[tarfile.TarInfo]:
    size, number = 0, 0
    inside = os.path.realpath(root)
    for member in tar:
        if member.isdev():
            continue
        _check_inside(member, inside)
        # Root would restore other owners; in the image all files belong to root.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        # Some images have files that their owner cannot read; mksquashfs must read them.
        member.mode |= 0o500 if member.isdir() else 0o400
        yield member
        size, number = size + member.size, number + 1
        advance(member.size)
    say(f"unpacked {size / 1e6:,.0f} MB in {number:,} files")


def _check_inside(member: tarfile.TarInfo, inside: str) -> None:
    """Refuse paths that lead out of `inside`, through a link of the image or by `..`."""
    for name in [member.name, member.linkname] if member.islnk() else [member.name]:
        path = os.path.normpath(f"{inside}/{name}")
        folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120 (Path is slow, and files are many)
        if ".." in name.split("/") or (path != inside and not f"{folder}/".startswith(f"{inside}/")):
            raise ConfigError("a path in an image's tar must stay inside", seen=name)
    member.name = member.name.lstrip("/") or "."
    if not member.isdir() and os.path.islink(path := f"{inside}/{member.name}"):  # noqa: PTH114
        os.unlink(path)  # noqa: PTH108


def write_layout(root: Path, config: ImageConfig) -> None:
    """Add the folders and files that enroot needs."""
    root.chmod(0o755)
    # An engine leaves mount points and placeholders of devices in the image's /dev.
    if (root / "dev").is_symlink():
        raise ConfigError("the image's /dev must be a folder", seen=f"a link to {(root / 'dev').readlink()}")
    if (root / "dev").exists():
        shutil.rmtree(root / "dev")
    for name in _MOUNT_POINTS:
        if not (root / name).exists() and not (root / name).is_symlink():
            (root / name).mkdir(mode=0o1777 if name == "tmp" else 0o755)
    if (root / "etc").is_symlink():
        raise ConfigError("the image's /etc must be a folder", seen=f"a link to {(root / 'etc').readlink()}")
    _write(root / "etc/environment", render_environment(config))
    _write(root / "etc/rc", render_rc(config))
    if not (root / "etc/rc.local").is_symlink() and not (root / "etc/rc.local").exists():
        _write(root / "etc/rc.local", "")


def render_environment(config: ImageConfig) -> str:
    """Return lines of NAME=value; values with a line break are omitted, since the format has no escape for them.

    >>> render_environment(ImageConfig(env=("PATH=/opt/bin:/bin", "BAD=a\\nb")))
    'PATH=/opt/bin:/bin\\n'
    """
    return "".join(f"{line}\n" for line in config.env if "\n" not in line)


def render_rc(config: ImageConfig) -> str:
    """Return enroot's start script: arguments replace the image's command, not its entry point."""
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


def _write(path: Path, text: str) -> None:
    # A link in the image could point outside.
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if path.name.startswith("rc") else 0o644)
