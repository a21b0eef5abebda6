"""Fetch the Python files of pinned packages that are not installed here, as one small archive each.

pip downloads the file named in containers/cuda/constraints.txt and checks its hash; nothing is installed or imported.
The archive is cached by version and hash, so a changed pin is downloaded again.
"""

import fcntl
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.layers import PACKAGE

_LOCK = PACKAGE.parent / "containers/cuda/constraints.txt"
_WORTH_A_TRY_S = 600


def open_pinned(name: str) -> zipfile.Path:
    """Return the archive of the distribution `name`; paths are those in the wheel or source archive.

    Skip the test if the file is not cached and no index can be reached.
    """
    line = _read_pin(name)
    version, digest = line.partition("==")[2].split()[0], line.partition("sha256:")[2].split()[0]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slurm_rl", "contracts")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name}-{version}-{digest[:16]}.zip"
    # Two concurrent processes would download it twice.
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_file():
            _fetch(name, line, kept)
    return zipfile.Path(kept)


def _read_pin(name: str) -> str:
    return next(line for line in _LOCK.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}=="))


def _fetch(name: str, line: str, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        (Path(place) / "pin.txt").write_text(line + "\n", encoding="utf-8")
        words = ["--no-deps", "--require-hashes", f"--dest={place}/files", f"--requirement={place}/pin.txt"]
        if line.endswith("# from source"):
            # pip reads metadata from the source archive; flash-attn's needs a compiler unless build isolation is off.
            words += ["--no-build-isolation"]
        else:
            words += ["--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", *words]
        env = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_WORTH_A_TRY_S, check=False)
        if done.returncode != 0:
            # pip retries if no index can be reached; a wrong hash or missing version must fail.
            end = pytest.skip if "Retrying (" in done.stderr else pytest.fail
            end(f"the index gave no {line.split()[0]}, and {kept} is not there: {done.stderr.strip()[-600:]}")
        [file] = (Path(place) / "files").iterdir()
        part = Path(place) / "part.zip"
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in _python_files(file):
                archive.writestr(path, content)
        part.replace(kept)


def _python_files(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of Python files; for a source archive, without the top-level folder."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            for path in wheel.namelist():
                if path.endswith(".py"):
                    yield path, wheel.read(path)
        return
    with tarfile.open(file) as source:
        for member in source:
            if member.isfile() and member.name.endswith(".py"):
                content = source.extractfile(member)
                assert content is not None
                yield member.name.partition("/")[2], content.read()
