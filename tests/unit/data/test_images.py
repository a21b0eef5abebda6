import base64
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slurm_rl.data.images import check_source, open_image, parse_source, read_size
from slurm_rl.errors import DataError
from slurm_rl.plugins.prepare.recipes.mathv60k import describe_damage


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    Image.new("RGBA", (5, 3), (255, 0, 0, 255)).save(path)
    return path


def test_forms_of_one_image_give_same_pixels(picture: Path) -> None:
    data = picture.read_bytes()
    forms: list[Any] = [
        str(picture),
        f"file://{picture}",
        f"file://{str(picture).replace(' ', '%20')}",
        picture.name,
        data,
        {"bytes": data, "path": None},
        {"bytes": None, "path": picture.name},
        "data:image/png;base64," + base64.b64encode(data).decode(),
    ]
    for form in forms:
        source = parse_source(form, picture.parent, "row 0")
        check_source(source, "row 0")
        assert read_size(source, "row 0") == (5, 3)
        image = open_image(source, "row 0")
        assert (image.mode, image.getpixel((4, 2))) == ("RGB", (255, 0, 0))


@pytest.mark.parametrize("value", [None, "", 3, {"url": "x"}, "https://example.org/1.png", "s3://bucket/1.png"])
def test_invalid_image_source_is_refused_with_row(value: Any) -> None:
    with pytest.raises(DataError, match="row 7: an image must be"):
        parse_source(value, Path("/data"), "row 7")


def test_missing_image_is_named_with_row(tmp_path: Path) -> None:
    source = parse_source("gone.png", tmp_path, "row 7")
    with pytest.raises(DataError, match=r"row 7: every image must be readable; got .*/gone\.png \(No such file"):
        check_source(source, "row 7")


def test_invalid_image_file_is_named_with_row(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(DataError, match=r"row 7: an image must be a complete .*text\.png.*hello"):
        check_source(str(tmp_path / "text.png"), "row 7")
    with pytest.raises(DataError, match=r"row 7: .*base64"):
        check_source("data:;base64,###", "row 7")


def test_truncated_image_is_refused_at_decoding(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jpg", tmp_path / "cut.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    cut.write_bytes(whole.read_bytes()[:1200])
    check_source(str(cut), "row 7")
    assert read_size(str(cut), "row 7") == (64, 64)
    with pytest.raises(DataError, match=r"row 7: an image must be a complete .*cut\.jpg.*truncated"):
        open_image(str(cut), "row 7")


def save(image: Image.Image, path: Path, **options: Any) -> str:
    image.save(path, **options)
    return str(path)


def drawn(mode: str, line: Any, ground: Any) -> Image.Image:
    """Return a 3x2 image with one pixel set at (1, 0)."""
    image = Image.new(mode, (3, 2), ground)
    image.putpixel((1, 0), line)
    return image


def gray16(*values: int) -> Image.Image:
    return Image.fromarray(np.array([values], dtype=np.uint16))


WHITE, BLACK, CLEAR = (255, 255, 255), (0, 0, 0), (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("image", "name", "options", "pixels"),
    [
        # Black lines on transparency: plain Image.convert("RGB") makes all pixels black.
        (drawn("RGBA", (0, 0, 0, 255), CLEAR), "a.png", {}, [WHITE, BLACK, WHITE]),
        (drawn("RGBA", (0, 0, 0, 255), CLEAR), "a.tiff", {}, [WHITE, BLACK, WHITE]),
        (drawn("LA", (0, 255), (0, 0)), "a.png", {}, [WHITE, BLACK, WHITE]),
        (drawn("RGBA", (0, 0, 0, 255), CLEAR).convert("P"), "a.png", {}, [WHITE, BLACK, WHITE]),
        (drawn("P", 1, 0), "a.png", {"transparency": 0}, [WHITE, (0, 0, 0), WHITE]),
        (drawn("P", 1, 0), "a.gif", {"transparency": 0}, [WHITE, (0, 0, 0), WHITE]),
        (drawn("L", 9, 0), "a.png", {"transparency": 0}, [WHITE, (9, 9, 9), WHITE]),
        (drawn("RGB", (9, 0, 0), BLACK), "a.png", {"transparency": BLACK}, [WHITE, (9, 0, 0), WHITE]),
        (drawn("RGBA", (255, 0, 0, 128), CLEAR), "a.png", {}, [WHITE, (255, 127, 127), WHITE]),
        # 16 bits: Image.convert clips all values above 255.
        (gray16(0, 32768, 65535), "a.png", {}, [BLACK, (128, 128, 128), WHITE]),
        (gray16(0, 32768, 65535), "a.tiff", {}, [BLACK, (128, 128, 128), WHITE]),
        (gray16(7, 257, 65535), "a.png", {"transparency": 7}, [WHITE, (1, 1, 1), WHITE]),
        # Modes that Image.convert reads correctly.
        (drawn("1", 1, 0), "a.png", {}, [BLACK, WHITE, BLACK]),
        (drawn("CMYK", (0, 255, 255, 0), (0, 0, 0, 0)), "a.tiff", {}, [WHITE, (255, 0, 0), WHITE]),
        (drawn("YCbCr", (0, 128, 128), (255, 128, 128)), "a.tiff", {}, [WHITE, BLACK, WHITE]),
    ],
)
def test_open_image_equals_viewer(
    image: Image.Image, name: str, options: dict[str, Any], pixels: list[tuple[int, ...]], tmp_path: Path
) -> None:
    source = save(image, tmp_path / name, **options)
    seen = open_image(source, "row 0")
    assert seen.mode == "RGB"
    assert read_size(source, "row 0") == seen.size == image.size
    assert [seen.getpixel((x, 0)) for x in range(3)] == [pytest.approx(pixel, abs=1) for pixel in pixels]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, (0, 0)), (2, (1, 0)), (3, (1, 1)), (4, (0, 1)), (5, (0, 0)), (6, (1, 0)), (7, (1, 1)), (8, (0, 1))],
)
def test_open_image_with_exif_orientation_is_upright(
    orientation: int, corner: tuple[int, int], suffix: str, tmp_path: Path
) -> None:
    image = Image.new("RGB", (64, 32), "white")
    image.paste("black", (0, 0, 16, 16))  # the orientation moves it to another corner
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = save(image, tmp_path / f"a.{suffix}", exif=exif)
    seen = open_image(source, "row 0")
    width, height = (32, 64) if orientation >= 5 else (64, 32)
    assert read_size(source, "row 0") == seen.size == (width, height)
    dark = [(x, y) for x in (0, 1) for y in (0, 1) if seen.getpixel((x * (width - 1), y * (height - 1))) < (99, 99, 99)]
    assert dark == [corner]
    assert seen.getexif().get(0x0112) is None, "a library further on could turn it again"


@pytest.mark.parametrize("exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x02\0\0\0a\0\0\0"])
def test_open_image_with_damaged_exif_is_not_rotated(exif: bytes, tmp_path: Path) -> None:
    source = save(Image.new("RGB", (4, 2)), tmp_path / "a.jpg", exif=exif)
    assert read_size(source, "row 0") == open_image(source, "row 0").size == (4, 2)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tiff"])
def test_open_image_of_several_frames_gives_first(suffix: str, tmp_path: Path) -> None:
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    source = save(first, tmp_path / f"a.{suffix}", save_all=True, append_images=[second])
    assert open_image(source, "row 0").getpixel((1, 1)) == pytest.approx((255, 0, 0), abs=1)


@pytest.mark.parametrize("mode", ["F", "I"])
@pytest.mark.parametrize("look", [open_image, read_size])
def test_image_without_defined_white_is_refused(mode: str, look: Callable[[str, str], Any], tmp_path: Path) -> None:
    source = save(Image.new(mode, (3, 2)), tmp_path / "a.tiff")
    with pytest.raises(DataError, match=rf"row 7: .*a\.tiff: pixels of mode {mode}.*Next: convert it to an 8-bit"):
        look(source, "row 7")


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG with a huge size in its header."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(10_000, 10_000), (50_000, 50_000)])
@pytest.mark.parametrize("look", [open_image, read_size])
def test_image_with_too_many_pixels_is_refused_before_decoding(
    size: tuple[int, int], look: Callable[[str, str], Any], tmp_path: Path
) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    with pytest.raises(DataError, match=r"row 7: .*bomb\.png: .*pixels"):
        look(str(path), "row 7")
    assert "pixels" in describe_damage(path)


def test_decoding_starts_no_program(tmp_path: Path) -> None:
    """Pillow runs Ghostscript for PostScript, detected by content instead of name."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n%%EOF\n")
    assert "UnidentifiedImageError" in describe_damage(path)
