"""From a name in the config to the function.

A user's file runs from the copy that submit put into the run's code, so that an edit reaches no later attempt and no
node needs to see the file itself; see read.py.
"""

from __future__ import annotations

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

from slurm_rl.errors import MissingLibraryError

CODE = Path(__file__).parents[3]
"""Holds this package: in a run its `code/`, else the checkout or what pip installed."""
COPIES = "user_functions"
_SPEC = re.compile(r".+\.py:([A-Za-z_]\w*|\*)", re.DOTALL)
"""`*`: all that the file has, for keys that take several functions."""


def is_file(spec: str) -> bool:
    """Whether the name is `file.py:function` rather than `module:function`.

    >>> is_file("~/my.py:centred"), is_file("slurm_rl.algorithms.losses:grpo"), is_file("my.py")
    (True, False, False)
    """
    return _SPEC.fullmatch(spec) is not None


def copy_path(code: Path, file: Path) -> Path:
    """Where the copy of a user's file (an absolute path) lies; files of one name from two folders do not meet."""
    return code / COPIES / hashlib.sha256(bytes(file)).hexdigest()[:12] / file.name


def find_file(spec: str) -> Path:
    """The file of `file.py:name` to read: the run's copy, where this program is part of a run."""
    file = Path(spec.rpartition(":")[0]).expanduser().absolute()
    copied = copy_path(CODE, file)
    return copied if copied.is_file() else file


@cache
def load_function(spec: str) -> Callable[..., Any]:
    """The function of `module:name` or `file.py:name`, loaded once.

    Raises:
        Exception: what the module raises; AttributeError: it has none such.
    """
    place, _, name = spec.rpartition(":")
    module = load_file(spec) if is_file(spec) else importlib.import_module(place)
    function: Callable[..., Any] = getattr(module, name)
    return function


def import_heavy(name: str, rule: str) -> Any:
    """A module that needs packages which a login node may be without.

    Raises:
        MissingLibraryError: they are not installed here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        action = "pip install slurm_rl[cpu], or run it in the image"
        raise MissingLibraryError(rule, seen=str(error), action=action) from None


def load_file(spec: str) -> ModuleType:
    """Run a user's file as a module, once. Its folder goes behind sys.path, so that it may import neighbours."""
    file, original = find_file(spec), Path(spec.rpartition(":")[0]).expanduser().absolute()
    name = f"slurm_rl_user_{hashlib.sha256(bytes(file)).hexdigest()[:12]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(found)
    # The second for what is imported in ways that nobody could see in the text.
    sys.path += [folder for folder in dict.fromkeys((str(file.parent), str(original.parent))) if folder not in sys.path]
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
