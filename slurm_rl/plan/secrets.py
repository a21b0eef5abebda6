"""Variables that pass through by name; their values stand in no file, argv or plan. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_rl.config.paths import is_url

if TYPE_CHECKING:
    from slurm_rl.config.run import RunConfig

SECRET_NAMES = ("WANDB_API_KEY", "HF_TOKEN")
# What s3fs and gcsfs look for; a container's environment has only what is named.
_BUCKET_NAMES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


def secret_names(config: RunConfig) -> tuple[str, ...]:
    """Those of every run, and those of buckets where the run has something on a URL.

    GOOGLE_APPLICATION_CREDENTIALS names a file, which container.mounts must bring.
    """
    places = (config.checkpoint.url, config.data.train, config.data.eval)
    on_urls = any(place is not None and is_url(place) for place in places)
    return SECRET_NAMES + (_BUCKET_NAMES if on_urls else ())
