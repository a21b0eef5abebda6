import struct
from pathlib import Path

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.plan.image_file import check_image_file, image_path


def sqsh(size: int, major: int = 4) -> bytes:
    header = bytearray(96)
    header[:4] = b"hsqs"
    struct.pack_into("<H", header, 28, major)
    struct.pack_into("<Q", header, 40, size)
    return bytes(header) + b"x" * (size - 96)


def sif(offset: int, length: int) -> bytes:
    header = bytearray(offset + length)
    header[32:42] = b"SIF_MAGIC\0"
    struct.pack_into("<qq", header, 112, offset, length)
    return bytes(header)


@pytest.mark.parametrize("content", [sqsh(5000), sqsh(5000) + b"\0" * 3000, sif(4096, 100)])
def test_complete_image_passes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    check_image_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sqsh(5000)[:4999], r"4,999 bytes; its header states 5,000"),
        (sif(4096, 100)[:-1], r"4,195 bytes; its header states 4,196"),
        (sqsh(5000)[:50], "must be a .sqsh or a .sif"),
        (sqsh(5000, major=3), "must be a .sqsh or a .sif"),
        (b"", "must be a .sqsh or a .sif"),
        (b"<html>not found</html>" * 20, "must be a .sqsh or a .sif"),
    ],
)
def test_damaged_image_is_named_with_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        check_image_file(path)
    assert "image build --force" in str(error.value)


def test_missing_image_is_named_with_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must exist.*image build"):
        check_image_file(tmp_path / "none.sqsh")
    with pytest.raises(ConfigError, match="must be readable"):
        check_image_file(tmp_path)


def test_reference_is_not_path() -> None:
    assert image_path("pyxis", "nvcr.io#nvidia/pytorch") is None
    assert image_path("docker", "/odd/but/a-reference") is None
    assert image_path("apptainer", "docker://ubuntu") is None
    assert image_path("apptainer", "/i/x.sif") == Path("/i/x.sif")
