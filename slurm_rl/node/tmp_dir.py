"""The node-local folder of an attempt: `srl-<run>-<attempt>-<word>` below cluster.tmp_root. Standard library alone.

Run and attempt are in it so that whoever cleans a node finds it by them. The word is so that nobody can take the name
first: of an attempt with Ray, whose folder must have one path on all nodes, it comes from the attempt's token, which
every node has and nobody else; else each node draws its own.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import shutil
import time
from pathlib import Path

from slurm_rl.errors import BringUpError
from slurm_rl.node.private_folder import is_our_folder
from slurm_rl.node.ray_cluster import token_file
from slurm_rl.plan.job import JobPlan
from slurm_rl.run_dir.run_dir import RunDir

# <tmp>/r/session_2026-11-21_10-15-00_123456_1234567/sockets/plasma_store must fit in 107 bytes.
_LONGEST_TMP = 107 - len("/r/session_2026-11-21_10-15-00_123456_12345678/sockets/plasma_store")
_RUN_CHARACTERS, _WORD_CHARACTERS = 6, 7
_REMOVE_DEADLINE_S = 5.0
_POLL_S = 0.02


def choose_tmp_dir(run: RunDir, plan: JobPlan, attempt: int) -> Path:
    """Where this node's agent is to make it.

    Raises:
        BringUpError: Ray's sockets would have longer paths than the kernel takes.
    """
    token = token_file(run, attempt)
    secret = token.read_bytes() if token.is_file() else secrets.token_bytes(16)
    path = Path(plan.tmp_root) / f"{tmp_stem(plan)}{attempt}-{_letters(b'folder' + secret, _WORD_CHARACTERS)}"
    if len(str(path)) > _LONGEST_TMP:
        raise BringUpError(
            f"cluster.tmp_root must leave room for Ray's sockets: at most {_LONGEST_TMP} characters with the run's tag",
            seen=f"{path} ({len(str(path))} characters)",
            action="set cluster.tmp_root=/tmp or another short node-local folder",
        )
    return path


def tmp_stem(plan: JobPlan) -> str:
    """How the names of all of the run's folders begin."""
    return f"srl-{_letters(plan.run_dir.encode(), _RUN_CHARACTERS)}-"


def remove_tmp_dirs(plan: JobPlan, attempt: int | None = None, *, before: int | None = None) -> None:
    """Remove what attempts of the run have on this machine, once their processes here are gone.

    Args:
        attempt: of this one alone.
        before: of those with a lower number alone, which Slurm killed before they could.
    """
    for path in Path(plan.tmp_root).glob(f"{tmp_stem(plan)}*"):
        number = path.name.removeprefix(tmp_stem(plan)).partition("-")[0]
        if number.isdigit() and attempt in (None, int(number)) and (before is None or int(number) < before):
            remove_tmp_dir(path)


def remove_tmp_dir(path: Path) -> None:
    """Remove a folder whose processes were ended just now.

    A thread of a killed process may end its write after the process has no environment any more, by which we know
    it; a file that comes while the folder is removed keeps the folder. So it is removed until it is gone.
    """
    if not is_our_folder(path):
        return
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    shutil.rmtree(path, ignore_errors=True)
    while path.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        shutil.rmtree(path, ignore_errors=True)


def _letters(text: bytes, number: int) -> str:
    """Five bits each."""
    return base64.b32encode(hashlib.sha256(text).digest()).decode()[:number].lower()
