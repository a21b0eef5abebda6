"""File systems of URLs, by fsspec: gs://, s3://, memory://, file:// and others."""

from typing import Any

from slurm_rl.errors import ConfigError, MissingLibraryError

_LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and the path in it.

    Raises:
        ConfigError: unknown protocol or invalid URL.
        MissingLibraryError: the library of the protocol is not installed; with the pip command.
    """
    protocol = url.partition("://")[0]
    try:
        import fsspec
    except ImportError:
        raise MissingLibraryError(
            f"{url} needs fsspec", seen="it is not installed", action="pip install fsspec"
        ) from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        library = _LIBRARIES.get(protocol) or protocol
        raise MissingLibraryError(
            f"{protocol}:// needs {library}", seen=str(error), action=f"pip install {library}, where the trainer runs"
        ) from None
    except ValueError as error:
        raise ConfigError("fsspec must know the protocol of the URL", seen=f"{url} ({error})") from None
    except Exception as error:  # of the library behind it, before it has even connected: credentials, a project
        raise ConfigError(f"{url} must open", seen=f"{type(error).__name__}: {error}") from None
    return filesystem, str(path).rstrip("/")
