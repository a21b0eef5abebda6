"""What a repository of the Hugging Face hub holds, and where this machine may already have it.

Address, token, cache folder and offline mode are huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HOME
(or HF_HUB_CACHE), HF_HUB_OFFLINE. The library is imported when it is first needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from slurm_rl.errors import ConfigError, PrepareError

Kind = Literal["dataset", "model"]
_LIST_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a repository at one commit."""

    name: str
    """Path in the repository, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str | None
    """Of a large file (Git LFS); None for a small one, which has its git id alone."""
    git_oid: str | None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A repository at one commit."""

    repo: str
    kind: Kind
    commit: str
    files: tuple[RemoteFile, ...]

    def select(self, names: Sequence[str]) -> list[RemoteFile]:
        """The files of these names, or that match these patterns, in the repository's order.

        Raises:
            ConfigError: no file is named so.
        """
        for name in names:
            if not any(fnmatch(file.name, name) for file in self.files):
                raise ConfigError(
                    f"the {self.kind} {self.repo} must hold {name}",
                    seen=", ".join(file.name for file in self.files[:20]) or "no file",
                    action="choose another --revision",
                )
        return [file for file in self.files if any(fnmatch(file.name, name) for name in names)]


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    _require_library()
    from huggingface_hub.constants import is_offline_mode

    return bool(is_offline_mode())


def list_snapshot(repo: str, kind: Kind, revision: str) -> Snapshot:
    """Ask the hub for the files of a repository, with sizes and checksums: one request.

    Raises:
        ConfigError: there is no such repository or revision, or the token may not read it.
        PrepareError: the hub did not answer.
    """
    _require_library()
    from huggingface_hub import HfApi

    with explain_hub_errors(repo, kind, revision):
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
    files = [
        RemoteFile(name=f.rfilename, size=f.size or 0, sha256=f.lfs.sha256 if f.lfs else None, git_oid=f.blob_id)
        for f in info.siblings or []
    ]
    return Snapshot(repo=repo, kind=kind, commit=str(info.sha), files=tuple(files))


def list_cached(repo: str, kind: Kind, revision: str, wanted: Sequence[str]) -> tuple[str, dict[str, Path]]:
    """Commit and files (name -> path) of a repository in the library's own cache, without the network.

    Raises:
        ConfigError: the cache has not every wanted file.
    """
    _require_library()
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                repo, repo_type=kind, revision=revision, local_files_only=True, allow_patterns=list(wanted)
            )
        )
    except LocalEntryNotFoundError:
        folder = None
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) if folder else []
    missing = [name for name in wanted if not any(fnmatch(found, name) for found in names)]
    if folder is None or missing:
        raise ConfigError(
            f"offline (HF_HUB_OFFLINE), {repo} must be in the cache already",
            seen=f"no {', '.join(missing or wanted)} of revision {revision} under {HF_HUB_CACHE}",
            action="unset HF_HUB_OFFLINE, or prepare it on a machine with a network",
        )
    return folder.name, {name: folder / name for name in names if any(fnmatch(name, wish) for wish in wanted)}


def find_cached(snapshot: Snapshot, file: RemoteFile) -> Path | None:
    """The file in the library's own cache; None when it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(snapshot.repo, file.name, revision=snapshot.commit, repo_type=snapshot.kind)
    return Path(found) if isinstance(found, str) else None


@contextlib.contextmanager
def explain_hub_errors(repo: str, kind: Kind, revision: str) -> Iterator[None]:
    """Turn the library's errors into ours: 2 for a wrong name, 1 for a network that failed."""
    from huggingface_hub import errors

    what = f"the {kind} {repo}"
    try:
        yield
    except errors.GatedRepoError:
        raise ConfigError(
            f"{what} is gated: its owner must have let you in",
            seen="access refused",
            action=f"accept its terms on the page of {repo}, then set HF_TOKEN to a token of yours",
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ConfigError(
            f"{what} must exist on the hub and be visible to you",
            seen=_first_line(error),
            action="check the name; for a private one set HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{what} must have the revision", seen=revision, action="choose another --revision") from None
    except errors.OfflineModeIsEnabled:
        raise ConfigError(f"{what} cannot be fetched offline", seen="HF_HUB_OFFLINE", action="unset it") from None
    except (OSError, errors.HTTPError) as error:
        raise PrepareError(
            f"{what} must come whole from the hub",
            seen=_first_line(error),
            action="run it again: it goes on from there",
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _require_library() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise ConfigError(
            "prepare needs huggingface_hub", seen="not installed", action="pip install slurm_rl[prepare]"
        ) from None
