"""From an image in an engine's store, a registry or a tar, to the file that pyxis or apptainer starts."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.plan.image_file import check_image_file
from slurm_rl.plugins.image.engines import ImageConfig, Podman
from slurm_rl.plugins.image.rootfs import unpack_root, write_layout
from slurm_rl.plugins.image.tools import explain_os_error, run_tool, say
from slurm_rl.run_dir.io_errors import annotate_path


@dataclass(frozen=True)
class Source:
    """Where the image comes from: an engine's store, or the tar of a root file system."""

    engine: Podman | None
    ref: str
    """A reference in the engine's store, or, without an engine, the path of a tar."""


@contextmanager
def write_beside(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of `path`, renamed when the block is through and the image verifies; else removed.

    Raises:
        ConfigError: the folder cannot be written to, or what was written is no whole image.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with annotate_path(path):
            beside.touch()
            beside.unlink()
            yield beside
            check_image_file(beside)
            beside.chmod(0o644)
            beside.replace(path)
    except OSError as error:
        raise explain_os_error(error) from None
    finally:
        beside.unlink(missing_ok=True)


def make_sqsh(source: Source, path: Path) -> None:
    """A .sqsh as pyxis takes it.

    Not by `enroot import podman://`: it refuses images without CMD and ENTRYPOINT, needs mksquashfs itself, and
    leaves its container in podman's store.
    """
    with write_beside(path) as beside, _unpacked(source) as root:
        # All files root's, whoever unpacked them. zstd's own level, 3: squashfs' 15 is minutes for a few per cent.
        options = ["-all-root", "-noappend", "-no-xattrs", "-no-progress", "-comp", "zstd", "-Xcompression-level", "3"]
        options += ["-processors", str(len(os.sched_getaffinity(0)))]
        run_tool(["mksquashfs", str(root), str(beside), *options], grows=beside)


def make_sif(source: Source, path: Path) -> None:
    """A .sif by apptainer, from the engine's archive or from the unpacked tar."""
    with write_beside(path) as beside, tempfile.TemporaryDirectory(prefix="slurm_rl-image-") as folder:
        if source.engine is None:
            with _unpacked(source) as root:
                run_tool(["apptainer", "build", str(beside), str(root)], grows=beside)
            return
        archive = Path(folder) / "image.tar"
        source.engine.save(source.ref, archive)
        run_tool(["apptainer", "build", str(beside), f"docker-archive:{archive}"], grows=beside)


def import_by_enroot(ref: str, path: Path) -> None:
    """A .sqsh straight from a registry."""
    with write_beside(path) as beside:
        run_tool(["enroot", "import", f"--output={beside}", enroot_uri(ref)], grows=beside)


def enroot_uri(ref: str) -> str:
    """A reference as enroot writes it, the registry apart; one that is in enroot's own notation stays as it is.

    >>> enroot_uri("nvcr.io/nvidia/pytorch:25.01-py3"), enroot_uri("library/ubuntu:24.04")
    ('docker://nvcr.io#nvidia/pytorch:25.01-py3', 'docker://library/ubuntu:24.04')
    >>> enroot_uri("registry:5000#team/image:1")
    'docker://registry:5000#team/image:1'
    """
    if "#" in ref:
        return f"docker://{ref}"
    registry, slash, rest = ref.partition("/")
    is_host = slash and (re.search("[.:]", registry) or registry == "localhost")
    return f"docker://{registry}#{rest}" if is_host else f"docker://{ref}"


_MAKERS = {
    "pyxis": (".sqsh", "mksquashfs", "install squashfs-tools, or build on a node that has enroot, which brings it"),
    "apptainer": (".sif", "apptainer", "load its module, or build on a node with it"),
}
"""Runtime to the suffix of its files, the program that makes them, and what to do where it is missing."""


def check_maker(runtime: str) -> None:
    """Before minutes of building: is the program there that makes the file at the end?

    Raises:
        ConfigError: it is not; names what to install.
    """
    if runtime in _MAKERS:
        suffix, program, action = _MAKERS[runtime]
        if shutil.which(program) is None:
            raise ConfigError(f"a {suffix} is made by {program}", seen="it is not on PATH", action=action)


@contextmanager
def _unpacked(source: Source) -> Iterator[Path]:
    """The root file system in a folder, in enroot's layout."""
    try:
        with tempfile.TemporaryDirectory(prefix="slurm_rl-image-", ignore_cleanup_errors=True) as folder:
            root = Path(folder) / "root"
            root.mkdir()
            say(f"unpacking in {folder}")
            if source.engine is None:
                config = ImageConfig()
                with Path(source.ref).open("rb") as stream:
                    unpack_root(stream, root)
            else:
                config = source.engine.inspect(source.ref) or ImageConfig()
                with source.engine.export(source.ref) as stream:
                    unpack_root(stream, root)
            write_layout(root, config)
            yield root
    except OSError as error:
        raise explain_os_error(error) from None
