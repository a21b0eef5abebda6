"""The node-local folder of an attempt: `srl-<run>-<attempt>-<secret>` in cluster.tmp_root. Standard library only.

Run and attempt let the cleaning find it. The secret keeps other users from creating the name first. Ray needs the
same path on all nodes, so there it derives from the attempt's token; else each node draws its own.
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

# <tmp>/r/session_2026-11-21_10-15-00_123456_1234567/sockets/plasma_store must fit into 107 bytes.
_MAX_LENGTH = 107 - len("/r/session_2026-11-21_10-15-00_123456_12345678/sockets/plasma_store")
_REMOVE_DEADLINE_S = 5.0
_POLL_S = 0.02


def choose_tmp_dir(run: RunDir, plan: JobPlan, attempt: int) -> Path:
    """Return the folder of this node. Raises BringUpError if its path is too long for Ray's sockets."""
    token = token_file(run, attempt)
    secret = token.read_bytes() if token.is_file() else secrets.token_bytes(16)
    path = Path(plan.tmp_root) / f"{tmp_stem(plan)}{attempt}-{_letters(b'folder' + secret, 7)}"
    if len(str(path)) > _MAX_LENGTH:
        raise BringUpError(
            f"cluster.tmp_root must leave room for Ray's sockets: at most {_MAX_LENGTH} characters with the run's tag",
            seen=f"{path} ({len(str(path))} characters)",
            action="set cluster.tmp_root=/tmp or another short node-local folder",
        )
    return path


def tmp_stem(plan: JobPlan) -> str:
    """Return the common prefix of the names of the run's folders."""
    return f"srl-{_letters(plan.run_dir.encode(), 6)}-"


def remove_tmp_dirs(plan: JobPlan, attempt: int | None = None, *, before: int | None = None) -> None:
    """Remove the run's folders on this machine, after its processes here have ended.

    Args:
        attempt: only of this attempt.
        before: only of earlier attempts than this one, which Slurm killed before they could clean up.
    """
    for path in Path(plan.tmp_root).glob(f"{tmp_stem(plan)}*"):
        number = path.name.removeprefix(tmp_stem(plan)).partition("-")[0]
        if number.isdigit() and attempt in (None, int(number)) and (before is None or int(number) < before):
            remove_tmp_dir(path)


def remove_tmp_dir(path: Path) -> None:
    """Remove a folder right after its processes were ended.

    A thread of a killed process may finish a write after its process can no longer be found by its mark, and a new file
    keeps the folder, so the removal is repeated.
    """
    if not is_our_folder(path):
        return
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    shutil.rmtree(path, ignore_errors=True)
    while path.exists() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        shutil.rmtree(path, ignore_errors=True)


def _letters(text: bytes, number: int) -> str:
    """Return a hash in base 32."""
    return base64.b32encode(hashlib.sha256(text).digest()).decode()[:number].lower()
