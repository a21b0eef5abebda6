"""Reads a command line with xpk's own argparse, without anything that asks Google: prints the arguments as JSON.

    parse_xpk.py <folder of the package> <words after xpk>

Its parsers and its list of TPUs are the release's; what they would call is replaced.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

REAL = ("xpk", "xpk.parser", "xpk.core", "xpk.utils")
READ = ("xpk.parser.", "xpk.core.system_characteristics", "xpk.utils.feature_flags", "xpk.utils.topology")


class Anything(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Replacer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an empty module for whatever the parsers import beside each other."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        is_theirs = name.startswith("xpk.") and name not in REAL and not name.startswith(READ)
        if is_theirs or name.split(".")[0] == "argcomplete":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    sys.meta_path.insert(0, Replacer())
    from xpk.parser.workload import set_workload_parsers

    parser = argparse.ArgumentParser("xpk")
    set_workload_parsers(parser.add_subparsers(dest="command").add_parser("workload"))
    seen = vars(parser.parse_args(sys.argv[2:]))
    print(json.dumps(seen, default=str))


if __name__ == "__main__":
    main()
