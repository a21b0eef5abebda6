"""Run the argument parser of an OpenRLHF program and its checks, without training.

    python parse_openrlhf.py <folder of the package> <module> <arguments>

Heavy imports are replaced; a stand-in for `train` prints its arguments as JSON.
"""

import ast
import importlib.util
import sys
from pathlib import Path

from heavy import Replacer  # type: ignore[import-not-found]

HEAVY = ("openrlhf", "ray", "torch", "deepspeed", "transformers", "flash_attn", "datasets")
CONFIG = "openrlhf.utils.config"
"""The release's module that must not be replaced."""


def main() -> None:
    root, module = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.meta_path.insert(0, Replacer(lambda name: name.split(".")[0] in HEAVY))
    config = importlib.util.spec_from_file_location(CONFIG, root / "openrlhf/utils/config.py")
    if Path(str(config and config.origin)).is_file():
        assert config is not None and config.loader is not None
        sys.modules[CONFIG] = importlib.util.module_from_spec(config)
        config.loader.exec_module(sys.modules[CONFIG])
    tree = ast.parse((root / Path(*module.split("."))).with_suffix(".py").read_text())
    shown = ast.parse("import json; print(json.dumps(args, default=lambda value: vars(value)))").body
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "train":
            node.body = shown
    exec(compile(ast.fix_missing_locations(tree), module, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
