"""Download files of a Hugging Face repository with `huggingface_hub.snapshot_download`, and verify them.

The library reads HF_ENDPOINT, HF_TOKEN, HF_HOME (or HF_HUB_CACHE) and HF_HUB_OFFLINE. It is imported late.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from slurm_rl.config.user_files.load import require_library
from slurm_rl.errors import ConfigError, PrepareError
from slurm_rl.plugins.prepare.manifest import Manifest, Output, Source, sha256_of
from slurm_rl.run_dir.io_errors import annotate_path, io_error_code
from slurm_rl.run_dir.meter import measure

Kind = Literal["dataset", "model"]
METADATA = ".cache"
"""Folder in which snapshot_download keeps etags and partial files; useless after a complete download."""
_LIST_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Required files of a repository as patterns of their names (`*` also matches slashes)."""

    patterns: tuple[str, ...]
    required: tuple[str, ...]
    """Patterns that must match at least one file each."""
    without: tuple[str, ...] = ()
    """Patterns of files to skip."""

    def select(self, names: Sequence[str], where: str) -> list[str]:
        """Return the wanted names, in their order.

        Args:
            where: source of the names, for the message.

        Raises:
            ConfigError: a required pattern matches no name.
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


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Downloaded files of one commit."""

    commit: str
    paths: dict[str, Path]
    """Name in the repository -> local file."""
    sources: list[Source]

    def make_manifest(
        self, name: str, folder: Path, revision: str, outputs: list[Output], left_out: Sequence[str] = ()
    ) -> Manifest:
        """Return the manifest of a folder made from these files."""
        return Manifest(name, str(folder), revision, self.commit, self.sources, outputs, list(left_out))


def fetch_files(
    repo: str, kind: Kind, revision: str, wanted: Wanted, folder: Path, say: Callable[[str], None]
) -> Fetched:
    """Download the wanted files into `folder`; offline, return their paths in the library's cache.

    Files that an earlier call completed are kept. A file that was cut off is downloaded again.

    Raises:
        ConfigError: no such repository, revision or file, no access, or offline without the files.
        PrepareError: the hub did not answer, the connection broke, or a file has another checksum.
    """
    require_library("huggingface_hub", "prepare needs huggingface_hub")
    from huggingface_hub import HfApi
    from huggingface_hub.constants import is_offline_mode

    if is_offline_mode():
        return _find_in_cache(repo, kind, revision, wanted)
    with explain_hub_errors(repo, kind, revision):
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision, files_metadata=True, timeout=_LIST_TIMEOUT_S)
    commit, listed = str(info.sha), {file.rfilename: file for file in info.siblings or []}
    names = wanted.select(list(listed), f"the {kind} {repo}")
    say(f"{repo} at {commit[:12]}: {len(names)} files, {sum(listed[name].size or 0 for name in names) / 1e9:.2f} GB")
    with annotate_path(folder), explain_hub_errors(repo, kind, revision):
        _download(repo, kind, commit, wanted, local_dir=folder)
    sources = [_verify(repo, listed[name], folder / name) for name in names]
    return Fetched(commit=commit, paths={name: folder / name for name in names}, sources=sources)


def _download(repo: str, kind: Kind, revision: str, wanted: Wanted, **options: Any) -> Path:
    """Call `snapshot_download` for the wanted files and return the folder that holds them."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repo,
            repo_type=kind,
            revision=revision,
            allow_patterns=list(wanted.patterns),
            ignore_patterns=list(wanted.without),
            **options,
        )
    )


def _find_in_cache(repo: str, kind: Kind, revision: str, wanted: Wanted) -> Fetched:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = _download(repo, kind, revision, wanted, local_files_only=True)
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"offline (HF_HUB_OFFLINE), the {kind} {repo} must be in the cache already",
            seen=f"{', '.join(wanted.required)} of revision {revision} not complete under {HF_HUB_CACHE}: "
            f"{_first_line(error)}",
            action="unset HF_HUB_OFFLINE, or prepare it on a machine with a network",
        ) from None
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    paths = {name: folder / name for name in wanted.select(names, f"offline, the cache {folder}")}
    sources = [
        Source(repo=repo, file=name, size=path.stat().st_size, sha256=sha256_of(path)) for name, path in paths.items()
    ]
    return Fetched(commit=folder.name, paths=paths, sources=sources)


def _verify(repo: str, listed: Any, path: Path) -> Source:
    """Compare size and checksum with the hub's list; remove a file that differs.

    Args:
        listed: huggingface_hub's RepoSibling; only large files (LFS) have a SHA-256.

    Raises:
        PrepareError: the file differs.
    """
    with measure(f"checking {listed.rfilename}"):
        size, sha256 = path.stat().st_size, sha256_of(path)
    expected = listed.lfs.sha256 if listed.lfs else sha256
    if (size, sha256) != (listed.size, expected):
        path.unlink()
        raise PrepareError(
            f"{listed.rfilename} of {repo} must have {listed.size} bytes and the checksum {expected}",
            seen=f"{size} bytes and {sha256}",
            action="run it again: the damaged file was removed",
        )
    return Source(repo=repo, file=listed.rfilename, size=size, sha256=sha256)


@contextlib.contextmanager
def explain_hub_errors(repo: str, kind: Kind, revision: str) -> Iterator[None]:
    """Convert the library's errors: ConfigError for bad input, PrepareError for a failed network."""
    from huggingface_hub import errors

    name = f"the {kind} {repo}"
    try:
        yield
    except errors.GatedRepoError:
        raise ConfigError(
            f"{name} is gated: its owner must grant you access",
            seen="access refused",
            action=f"accept its terms on the page of {repo}, then set HF_TOKEN to your token",
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ConfigError(
            f"{name} must exist on the hub and be visible to you",
            seen=_first_line(error),
            action="check the name; for a private one set HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{name} must have the revision", seen=revision, action="choose another --revision") from None
    except errors.OfflineModeIsEnabled:
        raise ConfigError(f"{name} cannot be fetched offline", seen="HF_HUB_OFFLINE", action="unset it") from None
    except (OSError, errors.HTTPError) as error:
        if isinstance(error, OSError) and io_error_code(error) is not None:
            raise  # the local disk refused the write
        raise PrepareError(
            f"{name} must be downloaded completely from the hub",
            seen=_first_line(error),
            action="run it again: complete files are kept. A proxy is set by HTTPS_PROXY, a mirror by HF_ENDPOINT",
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
