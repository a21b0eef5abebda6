"""`init`: write a project folder with presets, a reward and data, which trains as written."""

import argparse
import re
import shlex
from pathlib import Path

from slurm_rl.cli.parser import PROGRAM
from slurm_rl.config.paths import expand_user
from slurm_rl.config.presets import check_preset_name
from slurm_rl.errors import ConfigError
from slurm_rl.plugins.project.files import build_files
from slurm_rl.run_dir.run_dir import expect_writable, write_text


def run(args: argparse.Namespace) -> int:
    if len(args.rest) != 1:
        seen, action = " ".join(args.rest) or "none", f"{PROGRAM} init my-project"
        raise ConfigError("`init` takes one folder", seen=seen, action=action)
    folder = expand_user(args.rest[0])
    name = args.name if args.name is not None else name_project(folder)
    check_preset_name("exp", name)
    write_project(folder, build_files(name))
    lines = [
        f"wrote   {folder}: conf/exp/{name}.yaml and {name}_tiny.yaml, reward.py, data/train.jsonl, README.md",
        f"next    cd {shlex.quote(str(folder))}",
        f"then    {PROGRAM} +exp={name}_tiny",
    ]
    print("\n".join(lines), flush=True)
    return 0


def name_project(folder: Path) -> str:
    """Return the name of the experiment of a folder: that of the folder with valid characters only."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", folder.absolute().name).strip("_-")[:50] or "mine"


def write_project(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none if one of them exists.

    Raises:
        ConfigError: a file exists, or the folder is the installation.
        RunDirError: the folder is not writable.
    """
    if (folder / "conf/cluster/site_template.yaml").exists():
        seen, action = f"{folder}, a checkout of slurm_rl", "name a new folder"
        raise ConfigError("a project needs its own folder", seen=seen, action=action)
    taken = [path for path in files if (folder / path).exists() or (folder / path).is_symlink()]
    if taken:
        action = "choose another folder, or remove these files"
        raise ConfigError("`init` overwrites no file", seen=f"{', '.join(taken)} in {folder.absolute()}", action=action)
    with expect_writable(folder, "or choose another one", what="the project folder"):
        for path, text in files.items():
            write_text(folder / path, text)
