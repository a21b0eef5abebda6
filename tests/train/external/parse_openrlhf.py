"""Runs the argument parser of an OpenRLHF program, and the checks after it, without anything that trains.

    python parse_openrlhf.py <folder of the package> <module> <arguments>

Its heavy imports are replaced, and its `train` by one that prints the arguments it is given, as JSON.
"""

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

REAL = ("openrlhf", "openrlhf.cli", "openrlhf.utils.config")


class Anything(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Replacer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for whatever is heavy."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name == "openrlhf.utils.config":
            file = self.root / "openrlhf/utils/config.py"
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file)
        if name.split(".")[0] in ("openrlhf", "ray", "torch", "deepspeed", "transformers", "flash_attn", "datasets"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    root, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.meta_path.insert(0, Replacer(root))
    tree = ast.parse((root / Path(*module.split("."))).with_suffix(".py").read_text())
    shown = ast.parse("import json; print(json.dumps(args, default=lambda value: vars(value)))").body
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "train":
            node.body = shown
    exec(compile(ast.fix_missing_locations(tree), module, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    import importlib.util

    main()
