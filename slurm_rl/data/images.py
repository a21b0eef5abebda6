"""Sources of images: check, read and decode them. Standard library until pixels are read.

    /data/1.jpg    file:///data/1.jpg    1.jpg (next to the data file)    data:image/png;base64,iVBOR...    raw bytes

Rows hold the source, never the pixels: a data set of images does not fit in memory.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from slurm_rl.config.paths import expand_user
from slurm_rl.data.lines import shorten
from slurm_rl.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

T = TypeVar("T")
_DATA = "data:"
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6", b"P5")
"""First bytes of JPEG, PNG, GIF, BMP, TIFF, WebP and PPM."""
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Pillow's names of the same formats; some of its other formats start programs."""
MAX_PIXELS = 90_000_000
"""270 MB in RGB; a file of kilobytes may claim more."""
_HEAD_BYTES = 16
_THREADS = 16


def parse_source(value: Any, folder: Path, where: str) -> str:
    """Return a source as an absolute path or `data:;base64,...`; raise DataError for others, and for the network.

    Args:
        value: a string, bytes, or `{"bytes": ..., "path": ...}` as in parquet files.
        folder: start of relative paths.
    """
    if isinstance(value, dict) and ("bytes" in value or "path" in value):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, (bytes, bytearray)):
        return f"{_DATA};base64,{base64.b64encode(value).decode()}"
    if not isinstance(value, str) or not value:
        raise DataError(
            f"{where}: an image must be a path, file://..., data:...;base64,... or bytes",
            seen=f"{type(value).__name__} {shorten(repr(value), 120)}",
            action="correct the row",
        )
    if value.startswith(_DATA):
        return value
    if "://" in value[:12] and not value.startswith("file://"):
        raise DataError(
            f"{where}: an image must be on a file system that every node sees",
            seen=shorten(value, 120),
            action="download the images first and write their paths",
        )
    path = unquote(urlsplit(value).path) if value.startswith("file://") else value
    return str(folder.absolute() / expand_user(path))


def list_images(prompt: str | Sequence[dict[str, Any]], where: str) -> list[str]:
    if isinstance(prompt, str):
        return []
    contents = [message["content"] for message in prompt if isinstance(message["content"], list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    images = [part.get("image") for part in parts if part.get("type") == "image"]
    return [parse_source(image, Path(), where) for image in images if image is not None]


def check_source(source: str, where: str) -> None:
    """Read only the first bytes, so that 100,000 images take seconds; raise DataError if they are not an image's."""
    try:
        with _open(source, where) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(
            f"{where}: every image must be readable",
            seen=f"{_show(source)} ({error.strerror})",
            action="correct the path; relative ones start at the folder of the data file",
        ) from None
    if not head.startswith(_SIGNATURES):
        raise _not_an_image(source, where, f"a file that begins with {head[:8]!r}")


def check_sources(images: Sequence[tuple[str, str]]) -> None:
    """Check many (source, where), once each; the first bad one in their order is named."""
    first_place: dict[str, str] = {}
    for source, where in images:
        first_place.setdefault(source, where)
    # Waiting for a parallel file system, many at once take little longer than one.
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(check_source, first_place, first_place.values()))


def open_image(source: str, where: str) -> Image:
    """Return the decoded image in RGB as a viewer shows it: upright, on white, 16 bits scaled to 8, the first frame."""
    return _read(source, where, _decode)


def read_size(source: str, where: str) -> tuple[int, int]:
    """Return (width, height) in pixels of the upright image, from the file's header."""
    return _read(source, where, _upright_size)


_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""EXIF orientation to Pillow's name of the turn that makes the image upright; from 5 on, it swaps the sides."""


def _orientation(image: ImageFile) -> int:
    """Return the EXIF orientation that still has to be applied; 1 is upright."""
    from PIL import Image

    if image.format == "TIFF":  # Pillow turns it while it decodes, and its size is that of the turned image
        return 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Not PNG's own getexif, which decodes all pixels to search behind them: both readers must see the same.
            found = Image.Image.getexif(image).get(_ORIENTATION)
    except (SyntaxError, ValueError, struct.error):  # damaged metadata
        return 1
    return found if found in _TURNS else 1


def _upright_size(image: ImageFile) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _decode(image: ImageFile) -> Image:
    from PIL import Image

    turn = _TURNS.get(_orientation(image))
    image.load()
    made = _convert_to_rgb(image)
    made.info.clear()  # with its EXIF, a library further on could turn the image again
    return made if turn is None else made.transpose(Image.Transpose[turn])


def _convert_to_rgb(image: Image) -> Image:
    """Convert without the losses of `Image.convert`: it clips 16 bits at 255, and drops alpha, mostly onto black."""
    from PIL import Image

    if image.mode.startswith("I"):
        import numpy as np

        deep = np.asarray(image.convert("I"))
        scaled = np.where(deep == image.info.get("transparency"), 255, (deep + 128) // 257)
        return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")


def _read(source: str, where: str, take: Callable[[ImageFile], T]) -> T:
    from PIL import Image

    check_source(source, where)
    try:
        with _open(source, where) as file, open_bounded(file) as image:
            return take(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _not_an_image(source, where, str(error)) from None


def open_bounded(file: IO[bytes]) -> ImageFile:
    """Open an image without decoding it.

    Raises:
        OSError: unsupported format.
        ValueError: it claims more than MAX_PIXELS, or has pixels of a mode without a defined white.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes beyond its own bound, and odd metadata
        image = Image.open(file, formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels, where {MAX_PIXELS:,} are the most")
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError(f"pixels of mode {image.mode}, which have no defined white; 8 and 16 bits without sign have")
    return image


def _open(source: str, where: str) -> IO[bytes]:
    if not source.startswith(_DATA):
        return Path(source).open("rb")
    try:
        return io.BytesIO(base64.b64decode(source.partition(",")[2], validate=True))
    except (binascii.Error, ValueError) as error:
        raise _not_an_image(source, where, f"base64 that does not decode ({error})") from None


def _not_an_image(source: str, where: str, seen: str) -> DataError:
    return DataError(
        f"{where}: an image must be a complete JPEG, PNG, WebP, GIF, BMP, TIFF or PPM file",
        seen=f"{_show(source)}: {shorten(seen, 120)}",
        action="convert it to an 8-bit PNG or JPEG, or remove the row",
    )


def _show(source: str) -> str:
    return source if not source.startswith(_DATA) else source[:40] + "..."
