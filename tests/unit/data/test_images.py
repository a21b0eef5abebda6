"""Where images come from, and what is said of those that are none."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slurm_rl.data.images import check_source, open_image, parse_source, read_size
from slurm_rl.errors import DataError
from slurm_rl.prepare.recipes.mathv60k import describe_damage


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    Image.new("RGBA", (5, 3), (255, 0, 0, 255)).save(path)
    return path


def test_every_form_of_one_image_gives_the_same_pixels(picture: Path) -> None:
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
def test_what_is_no_image_source_is_refused_with_its_row(value: Any) -> None:
    with pytest.raises(DataError, match="row 7: an image must be"):
        parse_source(value, Path("/data"), "row 7")


def test_a_missing_image_is_named_with_its_row(tmp_path: Path) -> None:
    source = parse_source("gone.png", tmp_path, "row 7")
    with pytest.raises(DataError, match=r"row 7: every image must be readable; got .*/gone\.png \(No such file"):
        check_source(source, "row 7")


def test_a_file_that_is_no_image_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    with pytest.raises(DataError, match=r"row 7: an image must be a whole .*text\.png.*hello"):
        check_source(str(tmp_path / "text.png"), "row 7")
    with pytest.raises(DataError, match=r"row 7: .*base64"):
        check_source("data:;base64,###", "row 7")


def test_a_truncated_image_is_refused_when_it_is_decoded(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jpg", tmp_path / "cut.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    cut.write_bytes(whole.read_bytes()[:1200])
    check_source(str(cut), "row 7")
    assert read_size(str(cut), "row 7") == (64, 64)
    with pytest.raises(DataError, match=r"row 7: an image must be a whole .*cut\.jpg.*truncated"):
        open_image(str(cut), "row 7")


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that says it is so large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(10_000, 10_000), (50_000, 50_000)])
@pytest.mark.parametrize("look", [open_image, read_size])
def test_an_image_that_claims_too_many_pixels_is_refused_before_they_are_made(
    size: tuple[int, int], look: Callable[[str, str], Any], tmp_path: Path
) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    with pytest.raises(DataError, match=r"row 7: .*bomb\.png: .*pixels"):
        look(str(path), "row 7")
    assert "pixels" in describe_damage(path)


def test_no_program_is_started_for_a_picture(tmp_path: Path) -> None:
    """Pillow has Ghostscript draw PostScript, and looks at the content, not the name."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(x) run\n%%EOF\n")
    assert "UnidentifiedImageError" in describe_damage(path)
