"""What a repository of the Hugging Face hub holds, and where this machine may already have it.

Address, token, cache folder and offline mode are huggingface_hub's own: HF_ENDPOINT, HF_TOKEN, HF_HOME
(or HF_HUB_CACHE), HF_HUB_OFFLINE. The library is imported when it is first needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from slurm_rl.config.user_files.load import require_library
from slurm_rl.errors import ConfigError, PrepareError
from slurm_rl.run_dir.disk import find_refusal

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


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which files of a repository are needed, as patterns of their names (`*` also stands for slashes)."""

    patterns: tuple[str, ...]
    required: tuple[str, ...]
    """Each of these patterns must match a file."""
    without: tuple[str, ...] = ()
    """Not these, though a pattern matches."""

    def select(self, names: Sequence[str], where: str) -> list[str]:
        """The names that are wanted, in their order.

        Args:
            where: what the names are of, for the message.

        Raises:
            ConfigError: a required pattern matches none.
        """
        from huggingface_hub.utils import filter_repo_objects

        chosen = list(filter_repo_objects(names, allow_patterns=[*self.patterns], ignore_patterns=[*self.without]))
        for pattern in self.required:
            if not any(fnmatchcase(name, pattern) for name in chosen):
                raise ConfigError(
                    f"{where} must hold {pattern}",
                    seen=", ".join(names[:20]) or "no file",
                    action="check the name of the repository and --revision",
                )
        return chosen


def is_offline() -> bool:
    """Whether the environment forbids the network."""
    require_library("huggingface_hub", "prepare needs huggingface_hub")
    from huggingface_hub.constants import is_offline_mode

    return bool(is_offline_mode())


def list_snapshot(repo: str, kind: Kind, revision: str) -> Snapshot:
    """Ask the hub for the files of a repository, with sizes and checksums: one request.

    Raises:
        ConfigError: there is no such repository or revision, or the token may not read it.
        PrepareError: the hub did not answer.
    """
    from huggingface_hub import HfApi

    with explain_hub_errors(repo, kind, revision):
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
    files = [
        RemoteFile(name=f.rfilename, size=f.size or 0, sha256=f.lfs.sha256 if f.lfs else None, git_oid=f.blob_id)
        for f in info.siblings or []
    ]
    return Snapshot(repo=repo, kind=kind, commit=str(info.sha), files=tuple(files))


def list_cached(repo: str, kind: Kind, revision: str, wanted: Wanted) -> tuple[str, dict[str, Path]]:
    """Commit and files (name -> path) of a repository in the library's own cache, without the network.

    Raises:
        ConfigError: the cache has not every wanted file.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                repo,
                repo_type=kind,
                revision=revision,
                local_files_only=True,
                allow_patterns=list(wanted.patterns),
                ignore_patterns=list(wanted.without),
            )
        )
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"offline (HF_HUB_OFFLINE), the {kind} {repo} must be in the cache already",
            seen=f"{', '.join(wanted.required)} of revision {revision} not whole under {HF_HUB_CACHE}: "
            f"{_first_line(error)}",
            action="unset HF_HUB_OFFLINE, or prepare it on a machine with a network",
        ) from None
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return folder.name, {name: folder / name for name in wanted.select(names, f"offline, the cache {folder}")}


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
        if isinstance(error, OSError) and find_refusal(error) is not None:
            raise  # it is the disk here
        raise PrepareError(
            f"{what} must come whole from the hub",
            seen=_first_line(error),
            action="run it again: it resumes there",
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
