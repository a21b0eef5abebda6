"""The Python files of packages that are pinned and not installed here, as one small archive each.

pip fetches the file that containers/cuda/constraints.txt names and compares its hash; nothing of it is installed or
imported. What stays is below the cache folder, by version and hash, so a changed pin is fetched anew.
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
    """The archive of the distribution `name`: a path in it is the one in the wheel or the source.

    Skips the test when the file is not here and no index answers.
    """
    line = _read_pin(name)
    version, digest = line.partition("==")[2].split()[0], line.partition("sha256:")[2].split()[0]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slurm_rl", "contracts")
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{name}-{version}-{digest[:16]}.zip"
    # Two processes at once would fetch it twice.
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
            # pip asks the source for its metadata, which flash-attn's does not give without a compiler but for this.
            words += ["--no-build-isolation"]
        else:
            words += ["--only-binary=:all:", "--platform=manylinux_2_28_x86_64"]
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", *words]
        env = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_WORTH_A_TRY_S, check=False)
        if done.returncode != 0:
            # pip tries again where nobody answers; another hash, or no such version, is for a person to look at.
            end = pytest.skip if "Retrying (" in done.stderr else pytest.fail
            end(f"the index gave no {line.split()[0]}, and {kept} is not there: {done.stderr.strip()[-600:]}")
        [file] = (Path(place) / "files").iterdir()
        part = Path(place) / "part.zip"
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in _python_files(file):
                archive.writestr(path, content)
        part.replace(kept)


def _python_files(file: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content; of a source archive without its outermost folder."""
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
