"""GPU requirements of vLLM from its source package: tests/vllm/{cuda,rocm}.txt, written by `make lock`.

The CUDA wheel and the ROCm image have gigabytes; the requirements are small. With these files the tests check locks
offline.
"""

import io
import json
import re
import tarfile
import urllib.request
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "vllm"
_INDEX = "https://pypi.org/simple/vllm/"


def read_requirements(build: str) -> list[str]:
    """Return the requirements of the build `cuda` or `rocm`, one per line."""
    return (FOLDER / f"{build}.txt").read_text(encoding="utf-8").splitlines()


def write_requirements(extra: Iterable[str]) -> None:
    """Write the requirements of the vLLM version that the extra names."""
    [version] = (one.partition("==")[2] for one in extra if one.startswith("vllm=="))
    with tarfile.open(fileobj=io.BytesIO(_fetch_source(version))) as archive:
        for build in ("cuda", "rocm"):
            lines = _read(archive, f"vllm-{version}/requirements", f"{build}.txt")
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{build}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _fetch_source(version: str) -> bytes:
    asked = urllib.request.Request(_INDEX, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        files = {file["filename"]: file["url"] for file in json.load(answer)["files"]}
    with urllib.request.urlopen(files[f"vllm-{version}.tar.gz"], timeout=600) as answer:
        return bytes(answer.read())


def _read(archive: tarfile.TarFile, folder: str, name: str) -> list[str]:
    """Return the lines without comments, including those of included files."""
    member = archive.extractfile(f"{folder}/{name}")
    assert member is not None
    lines: list[str] = []
    for line in member.read().decode().splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text.startswith("-r "):
            lines += _read(archive, folder, text[3:].strip())
        elif text:
            lines.append(text)
    return lines
