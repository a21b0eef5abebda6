"""The copies of users' files in a run's code: each with the modules beside it that it imports."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from modulefinder import ModuleFinder
from pathlib import Path

from slurm_rl.errors import ConfigError
from slurm_rl.functions.load import copy_path


def copy_files(code: Path, specs: Iterable[str]) -> None:
    """Copy the files of these `file.py:name` into `code`; one that is there already, in a sweep, stays as it is.

    Raises:
        ConfigError: a file or one beside it cannot be read.
        OSError: `code` cannot be written.
    """
    for file in dict.fromkeys(Path(spec.rpartition(":")[0]) for spec in specs):
        target = copy_path(code, file)
        if target.is_file():
            continue
        for neighbour in find_neighbours(file) if file.is_file() else []:
            _copy(neighbour, target.parent / neighbour.relative_to(file.parent))
        _copy(file, target)  # last: where it is, its neighbours are


def find_neighbours(file: Path) -> list[Path]:
    """The modules below the file's folder that it imports, and those that they import; none of them is run."""
    finder = ModuleFinder(path=[str(file.parent)], excludes=[*sys.stdlib_module_names, "slurm_rl"])
    finder.run_script(str(file))
    files = [getattr(module, "__file__", None) for module in finder.modules.values()]
    return sorted({Path(path) for path in files if path} - {file})


def _copy(source: Path, target: Path) -> None:
    try:
        content = source.read_bytes()
    except OSError as error:
        action = "give the file, and what it imports from its folder, to whoever submits"
        raise ConfigError(
            "a function's file must be readable", seen=f"{source} ({error.strerror})", action=action
        ) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
