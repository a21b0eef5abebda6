"""Convert an image of an engine's store, a registry or a tar to the file that pyxis or apptainer starts."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.plan.image_file import check_image_file
from slurm_rl.plugins.image.engines import Engine, ImageConfig
from slurm_rl.plugins.image.rootfs import unpack_root, write_layout
from slurm_rl.plugins.image.tools import explain_os_error, run_tool, say
from slurm_rl.run_dir.io_errors import annotate_path

_MAKERS = {
    "pyxis": (".sqsh", "mksquashfs", "install squashfs-tools, or build on a node that has enroot, which brings it"),
    "apptainer": (".sif", "apptainer", "load its module, or build on a node with it"),
}
"""Runtime -> suffix of its files, the program that makes them, and the advice if it is missing."""


def check_maker(runtime: str) -> None:
    """Raise ConfigError before the build if the program that makes the file is missing."""
    if runtime in _MAKERS:
        suffix, program, action = _MAKERS[runtime]
        if shutil.which(program) is None:
            raise ConfigError(f"a {suffix} is made by {program}", seen="it is not on PATH", action=action)


@contextmanager
def write_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary name in the folder of `path`; rename it at the end if it is a whole image, else remove it.

    Raises:
        ConfigError: the folder is not writable, or the result is not a whole image.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with annotate_path(path):
            temporary.touch()
            temporary.unlink()
            yield temporary
            check_image_file(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        raise explain_os_error(error) from None
    finally:
        temporary.unlink(missing_ok=True)


def make_sqsh(engine: Engine | None, ref: str, path: Path) -> None:
    """Write a .sqsh for pyxis, from an image in the engine's store or, without an engine, from the tar `ref`.

    `enroot import podman://` does not fit: it refuses images without CMD and ENTRYPOINT, needs mksquashfs itself, and
    leaves its container in podman's store.
    """
    with write_beside(path) as file, _unpacked(engine, ref) as root:
        # All files belong to root. zstd's own level is 3; squashfs' 15 takes minutes and saves a few percent.
        options = ["-all-root", "-noappend", "-no-xattrs", "-no-progress", "-comp", "zstd", "-Xcompression-level", "3"]
        options += ["-processors", str(len(os.sched_getaffinity(0)))]
        run_tool(["mksquashfs", str(root), str(file), *options], grows=file)


def make_sif(engine: Engine | None, ref: str, path: Path) -> None:
    """Write a .sif with apptainer, from the engine's archive or, without an engine, from the tar `ref`."""
    with write_beside(path) as file, tempfile.TemporaryDirectory(prefix="slurm_rl-image-") as folder:
        if engine is None:
            with _unpacked(engine, ref) as root:
                run_tool(["apptainer", "build", str(file), str(root)], grows=file)
        else:
            archive = Path(folder) / "image.tar"
            engine.save(ref, archive)
            run_tool(["apptainer", "build", str(file), f"docker-archive:{archive}"], grows=file)


def import_by_enroot(ref: str, path: Path) -> None:
    """Write a .sqsh directly from a registry."""
    with write_beside(path) as file:
        run_tool(["enroot", "import", f"--output={file}", enroot_uri(ref)], grows=file)


def build_by_apptainer(source: str, path: Path, extra: Sequence[str] = ()) -> None:
    """Write a .sif with apptainer only, from a definition file or `docker://<reference>`; it needs no root."""
    with write_beside(path) as file:
        run_tool(["apptainer", "build", *extra, str(file), source], grows=file)


def enroot_uri(ref: str) -> str:
    """Return a reference in enroot's notation, which separates the registry by #.

    >>> enroot_uri("nvcr.io/nvidia/pytorch:25.01-py3"), enroot_uri("library/ubuntu:24.04")
    ('docker://nvcr.io#nvidia/pytorch:25.01-py3', 'docker://library/ubuntu:24.04')
    >>> enroot_uri("registry:5000#team/image:1")
    'docker://registry:5000#team/image:1'
    """
    registry, slash, rest = ref.partition("/")
    has_host = "#" not in ref and slash and (re.search("[.:]", registry) or registry == "localhost")
    return f"docker://{registry}#{rest}" if has_host else f"docker://{ref}"


@contextmanager
def _unpacked(engine: Engine | None, ref: str) -> Iterator[Path]:
    """Yield a folder with the root file system in enroot's layout."""
    try:
        with tempfile.TemporaryDirectory(prefix="slurm_rl-image-", ignore_cleanup_errors=True) as folder:
            root = Path(folder) / "root"
            root.mkdir()
            say(f"unpacking in {folder}")
            with engine.export(ref) if engine else Path(ref).open("rb") as stream:
                unpack_root(stream, root)
            write_layout(root, (engine and engine.inspect(ref)) or ImageConfig())
            yield root
    except OSError as error:
        raise explain_os_error(error) from None
