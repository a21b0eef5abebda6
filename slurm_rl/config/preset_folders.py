"""Folders with presets: shipped, of a site, of a project, of the user. Standard library only."""

import os
from pathlib import Path

from slurm_rl.config.overrides import GROUPS
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError

SITE_DIR_VARIABLE = "SLURM_RL_CONFIG_DIR"


def conf_dir() -> Path:
    """Return the folder of the shipped presets."""
    return shipped_dir("conf", "config.yaml")


def shipped_dir(name: str, example: str) -> Path:
    """Return a shipped folder: next to the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / name, package.parent / name):
        if (candidate / example).is_file():
            return candidate
    raise ConfigError(
        f"{name}/{example} must be in the checkout or the installed package",
        seen=str(package.parent),
        action="install again with `pip install .`",
    )


def own_dir() -> Path:
    """Return the folder of the user's own presets, where `site` writes one."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return Path(base).absolute() / "slurm_rl" if base else expand_user("~/.config/slurm_rl")


def project_dir() -> Path | None:
    """Return `conf` of the current folder if it has groups of presets and is not that of a checkout of slurm_rl."""
    folder = Path("conf").absolute()
    is_checkout = (folder / "cluster" / "site_template.yaml").is_file()
    return folder if any((folder / group).is_dir() for group in GROUPS) and not is_checkout else None


def site_dirs(config_dir: str | None) -> list[Path]:
    """Return the folders of a site's presets, the first of which wins.

    They are --config-dir, the environment variable, `conf` of the current folder, and the user's folder.
    """
    named = {"--config-dir": config_dir, SITE_DIR_VARIABLE: os.environ.get(SITE_DIR_VARIABLE)}
    found = []
    for source, value in named.items():
        if value:
            path = expand_user(value).absolute()
            if not path.is_dir():
                raise ConfigError(f"{source} must name a folder with presets", seen=str(path))
            found.append(path)
    project = project_dir()
    found += [project] if project is not None else []
    return [*found, own_dir()] if own_dir().is_dir() else found
