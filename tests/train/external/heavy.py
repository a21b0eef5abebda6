"""Replace heavy modules by empty ones in scripts that run a release's parsers."""

import importlib.abc
import importlib.machinery
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock


class Anything(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Replacer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Importer that returns an empty module for each heavy name."""

    def __init__(self, is_heavy: Callable[[str], bool]) -> None:
        self.is_heavy = is_heavy

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if self.is_heavy(name) else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
