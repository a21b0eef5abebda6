"""Opens and decodes every image of a data set, so that no training step meets a broken one."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_rl.data.images import open_bounded
from slurm_rl.errors import ConfigError

MAX_ASPECT = 200
"""Longer side over shorter: the image processor of the Qwen-VL families refuses more."""


def find_bad_images(
    paths: Sequence[Path], say: Callable[[int, int], None] = lambda done, total: None
) -> dict[Path, str]:
    """What is wrong with each image that cannot be trained on; empty when all are whole.

    Args:
        say: called with (images looked at, all images).

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise ConfigError(
            "checking images needs Pillow", seen="not installed", action="pip install slurm_rl[prepare]"
        ) from None
    bad: dict[Path, str] = {}
    # Threads: reading waits for the disk, and decoding lets go of the interpreter's lock.
    with ThreadPoolExecutor(max_workers=min(16, 2 * len(os.sched_getaffinity(0)))) as pool:
        for done, (path, why) in enumerate(zip(paths, pool.map(describe_damage, paths), strict=True), 1):
            if why:
                bad[path] = why
            say(done, len(paths))
    return bad


def describe_damage(path: Path) -> str:
    """Why this image cannot be used, or "" when it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # odd metadata is no damage
            with path.open("rb") as file, open_bounded(file) as image:
                width, height = image.size
                if max(width, height) > MAX_ASPECT * min(width, height):
                    return f"{width} x {height} pixels, longer than {MAX_ASPECT} times its width"
                # A JPEG is read to its end but decoded at an eighth of its size.
                image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
                image.load()
    except FileNotFoundError:
        return "no such file"
    except Exception as error:  # a damaged file makes decoders raise what they like
        return f"{type(error).__name__}: {error}"
    return ""
