"""Import the function that a config value names. Standard library only.

A user's file is imported from the copy in the run directory, so later edits do not reach a run that has started.
"""

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from slurm_rl.errors import ConfigError, MissingLibraryError


def _find_code() -> Path:
    """Return the folder that holds the package: `code/` of a run, the checkout, or site-packages."""
    return next(folder.parent for folder in Path(__file__).parents if folder.name == "slurm_rl")


CODE = _find_code()
COPIES = "user_functions"
# `*` selects every function of the file.
_SPEC = re.compile(r".+\.py:([A-Za-z_]\w*|\*)", re.DOTALL)


def is_file(spec: str) -> bool:
    """Return whether the name is `file.py:function`.

    >>> is_file("~/my.py:centred"), is_file("slurm_rl.algorithms.losses:grpo"), is_file("my.py")
    (True, False, False)
    """
    return _SPEC.fullmatch(spec) is not None


def copy_path(code: Path, file: Path) -> Path:
    """Return where the copy of a user's file (an absolute path) is; the hash separates files with the same name."""
    return code / COPIES / hashlib.sha256(bytes(file)).hexdigest()[:12] / file.name


def find_file(spec: str) -> Path:
    """Return the file of `file.py:name`: the run's copy if there is one, else the original."""
    file = Path(spec.rpartition(":")[0]).expanduser().absolute()
    copied = copy_path(CODE, file)
    return copied if copied.is_file() else file


@cache
def load_function(spec: str) -> Callable[..., Any]:
    """Import the function of `module:name` or `file.py:name`, once.

    Raises:
        Exception: raised by the module; AttributeError: it has no such function.
    """
    place, _, name = spec.rpartition(":")
    module = load_file(spec) if is_file(spec) else importlib.import_module(place)
    function: Callable[..., Any] = getattr(module, name)
    return function


def require_library(module: str, rule: str) -> None:
    """Raise ConfigError with the rule if a library of the extra `prepare` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(rule, seen="not installed", action="pip install slurm_rl[prepare]")


def import_heavy(name: str, rule: str) -> Any:
    """Import a module that needs packages a login node may lack.

    Raises:
        MissingLibraryError: they are not installed here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        action = "pip install slurm_rl[cpu], or run it in the image"
        raise MissingLibraryError(rule, seen=str(error), action=action) from None


def load_file(spec: str) -> ModuleType:
    """Import a user's file, once. Its folder is appended to sys.path, so it may import its neighbours."""
    file, original = find_file(spec), Path(spec.rpartition(":")[0]).expanduser().absolute()
    name = f"slurm_rl_user_{hashlib.sha256(bytes(file)).hexdigest()[:12]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(found)
    # The original folder serves imports that no static analysis finds.
    sys.path += [folder for folder in dict.fromkeys((str(file.parent), str(original.parent))) if folder not in sys.path]
    sys.modules[name] = module  # dataclasses look up their module there
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
