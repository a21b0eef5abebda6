"""Folders on this machine of models that the config names as on the Hugging Face hub."""

import os
import re
from pathlib import Path

from slurm_rl.config.paths import expand_user

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
PREPARED = "manifest.json"
"""Last file that `prepare` writes."""


def is_hub_name(path: str) -> bool:
    """Return whether it is not an existing folder and may be a name on the hub.

    >>> is_hub_name("Qwen/Qwen3-4B"), is_hub_name("/models/qwen"), is_hub_name("./qwen"), is_hub_name("runs/a/export")
    (True, False, False, False)
    """
    return _NAME.fullmatch(path) is not None and not Path(path).exists()


def find_folder(name: str, root: str, *, use_cache: bool) -> Path | None:
    """Return the folder with the model of this name.

    Args:
        root: data.root, where `prepare model` writes.
        use_cache: also look into huggingface_hub's cache.
    """
    prepared = expand_user(root) / name
    if all((prepared / file).is_file() for file in (PREPARED, "config.json")):
        return prepared.absolute()
    return find_snapshot(name) if use_cache else None


def find_snapshot(name: str) -> Path | None:
    """Return the folder of a model in huggingface_hub's cache: of its main branch, else the newest; None without one.

    The layout is models--<org>--<name>/snapshots/<commit>/, and refs/main has a commit.
    """
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    cache = expand_user(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    found = sorted(cache.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
    main = cache / "refs" / "main"
    commit = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    of_main = [path for path in found if path.parent.name == commit]
    return [*found, *of_main][-1].parent if found else None
