"""One file from the hub to this machine, resumed where an earlier process was killed, and checked.

huggingface_hub itself resumes within one process only, since its partial file is unique to that. So the bytes
come here, over its session and to its rules, into a partial file that stays, next to the target:
`<name>.<first 16 digits of the checksum>.part`.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit

from slurm_rl.errors import PrepareError
from slurm_rl.plugins.prepare.hf_hub import RemoteFile, Snapshot, explain_hub_errors, find_cached
from slurm_rl.plugins.prepare.manifest import git_oid_of, sha256_of
from slurm_rl.run_dir.disk import fsync_path, naming
from slurm_rl.run_dir.meter import measure

_ATTEMPTS = 5
"""Broken connections in a row without a new byte, before giving up; between them half a second, doubled each time."""


def fetch(snapshot: Snapshot, file: RemoteFile, target: Path, revision: str) -> None:
    """Make `target` the file: from the library's cache when it is there, else from the hub.

    A target that is there already is kept when its checksum is right.

    Raises:
        PrepareError: the connection broke for good (what came stays), or the content has another checksum.
        ConfigError: access was refused.
    """
    if target.is_file() and _is_file(file, target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{(file.sha256 or file.git_oid or snapshot.commit)[:16]}.part")
    cached = find_cached(snapshot, file)
    if cached is not None:
        with measure(f"copying {file.name}", file.size, poll=lambda: part.stat().st_size):
            shutil.copyfile(cached, part)
    else:
        with naming(part), explain_hub_errors(snapshot.repo, snapshot.kind, revision):
            _download(snapshot, file, part)
    _check(snapshot, file, part)
    fsync_path(part)
    part.replace(target)
    fsync_path(target.parent)


def _download(snapshot: Snapshot, file: RemoteFile, part: Path) -> None:
    """Append to `part` what it lacks; a connection that breaks is made again as long as bytes come."""
    from huggingface_hub import errors

    failures = 0
    part.touch()
    while (size := part.stat().st_size) < file.size:
        try:
            _download_rest(snapshot, file, part, size)
            failures = 0
        except (OSError, errors.HTTPError) as error:
            failures = 1 if part.stat().st_size > size else failures + 1
            if failures == _ATTEMPTS or not _is_transient(error):
                raise
            time.sleep(0.5 * 2 ** (failures - 1))


def _download_rest(snapshot: Snapshot, file: RemoteFile, part: Path, size: int) -> None:
    """Ask for the bytes from `size` on, and append those that come.

    Raises:
        OSError: fewer or more came than the hub listed.
        Exception: the library's, for a refusal or a broken connection.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(snapshot.repo, file.name, repo_type=snapshot.kind, revision=snapshot.commit)
    location = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).location
    headers = {**build_hf_headers(), "Accept-Encoding": "identity", **({"Range": f"bytes={size}-"} if size else {})}
    if urlsplit(location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # a signed address elsewhere needs no token and gets none
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", location, headers=headers, timeout=timeout, follow_redirects=True) as response:
        hf_raise_for_status(response)
        whole = response.status_code != 206  # the range was not heeded: from the start again
        with (
            part.open("wb" if whole else "ab") as out,
            measure(file.name, file.size, begun=out.tell()) as advance,
        ):
            for chunk in response.iter_bytes():
                out.write(chunk)
                advance(len(chunk))
                if out.tell() > file.size:
                    out.truncate(0)
                    raise OSError(f"{file.name}: more than {file.size} bytes came")
    if part.stat().st_size < file.size:
        raise OSError(f"{file.name}: {part.stat().st_size} of {file.size} bytes came")


def _is_transient(error: Exception) -> bool:
    """A cut, silent or busy server; not a refusal, and not this machine's disk."""
    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code >= 500 or response.status_code in (408, 429)
    return not isinstance(error, OSError) or error.errno is None or isinstance(error, ConnectionError | TimeoutError)


def _is_file(file: RemoteFile, path: Path) -> bool:
    """Whether `path` holds what the hub lists."""
    if path.stat().st_size != file.size:
        return False
    with measure(f"checking {file.name}"):
        return (file.sha256 or file.git_oid) in (None, sha256_of(path) if file.sha256 else git_oid_of(path))


def _check(snapshot: Snapshot, file: RemoteFile, part: Path) -> None:
    """Remove and report content that is not what the hub lists."""
    if _is_file(file, part):
        return
    size = part.stat().st_size
    part.unlink()
    raise PrepareError(
        f"{file.name} of {snapshot.repo} must have {file.size} bytes and the checksum {file.sha256 or file.git_oid}",
        seen=f"{size} bytes with another",
        action="run it again: the damaged file was removed",
    )
