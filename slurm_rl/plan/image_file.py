"""Check and describe image files by their headers and the manifest next to them."""

import struct
from pathlib import Path
from typing import Any

from slurm_rl.config.runtimes import RUNTIMES
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import JobPlan

_HEADER = 128


def image_path(runtime: str, image: str | None) -> Path | None:
    """Return the file of container.image; None if the image is in a store or a registry.

    >>> image_path("podman", "localhost/rl:1")
    >>> image_path("pyxis", "nvcr.io#nvidia/pytorch:25.01-py3")
    >>> image_path("pyxis", "/images/rl.sqsh")
    PosixPath('/images/rl.sqsh')
    """
    is_file = RUNTIMES[runtime].image_suffix is not None
    is_path = is_file and image is not None and image.startswith(("/", "./", "../"))
    return Path(image) if is_path and image else None


def check_image_file(path: Path) -> None:
    """Compare the size of the file with its header, which finds truncated files.

    Raises:
        ConfigError: the file is missing, not an image, or truncated.
    """
    again = "build it again: python -m slurm_rl image build --force, with the arguments of this command"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        raise ConfigError(
            "container.image must exist",
            seen=str(path),
            action="build it: python -m slurm_rl image build, with the arguments of this command, or fix the path",
        ) from None
    except OSError as error:
        raise ConfigError(f"container.image must be readable ({error.strerror})", seen=str(path)) from None
    kind, wanted = _read_header(header)
    if wanted is None:
        raise ConfigError(
            "container.image must be a .sqsh or a .sif", seen=f"{path}, which begins {header[:8]!r}", action=again
        )
    if size < wanted:
        raise ConfigError(
            f"a {kind} must be complete", seen=f"{path} of {size:,} bytes; its header states {wanted:,}", action=again
        )


def _read_header(header: bytes) -> tuple[str, int | None]:
    """Return the kind and the smallest size in bytes; None as size if the file is of neither kind."""
    if len(header) >= 96 and header[:4] == b"hsqs":
        # squashfs 4.0: s_major at 28, bytes_used at 40 (Linux, fs/squashfs/squashfs_fs.h).
        major, used = struct.unpack_from("<H", header, 28)[0], struct.unpack_from("<Q", header, 40)[0]
        return ".sqsh", used if major == 4 else None
    if len(header) >= _HEADER and header[32:41] == b"SIF_MAGIC":
        # Offset and size of the data section (github.com/sylabs/sif, pkg/sif/sif.go).
        offset, length = struct.unpack_from("<qq", header, 112)
        return ".sif", offset + length
    return "", None


def manifest_path(image: Path) -> Path:
    return image.with_name(f"{image.name}.json")


def is_as_made(image: Path, source: str, manifest: dict[str, Any] | None) -> bool:
    """Return whether this file was built from that source and has not changed since."""
    if manifest is None or manifest.get("source_hash") != source or not image.is_file():
        return False
    try:
        check_image_file(image)
    except ConfigError:
        return False
    return bool(manifest.get("size") == image.stat().st_size)


def describe_image(plan: JobPlan) -> str | None:
    """Return the image and its size in one line; None without a container."""
    runtime, image = plan.container["runtime"], plan.container["image"]
    if image is None:
        return None
    path = image_path(runtime, image)
    if path is None:
        return f"image   {image}, from {runtime}'s store on each node or its registry"
    if path.is_file():
        return f"image   {image} ({path.stat().st_size / 1e6:,.0f} MB)"
    return f"image   {image}, which this machine does not see (python -m slurm_rl doctor asks a node)"


def check_image_is_there(plan: JobPlan) -> None:
    """Refuse a missing or damaged image file before anything is written or queued.

    A folder that this machine lacks is accepted, since only the nodes may have it.

    Raises:
        ConfigError: the file is missing or damaged, or its path is relative and thus differs between nodes.
    """
    path = image_path(plan.container["runtime"], plan.container["image"])
    if path is None:
        return
    if not path.is_absolute():
        raise ConfigError("container.image must be an absolute path, or a reference", seen=str(path))
    if path.parent.is_dir():
        check_image_file(path)
