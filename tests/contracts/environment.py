"""Environment variables that slurm_rl sets for a run."""

import ast
import re

import yaml

from slurm_rl.plan.accelerator import accelerator_env, debug_env, ray_env, read_rows
from tests.contracts.uses import sources
from tests.layers import PACKAGE


def names_that_we_set() -> set[str]:
    """Return the names in the plan's tables, in presets, and in string constants of the sources."""
    tables = [variable.name for _, variable in read_rows()]
    tables += [
        variable.name
        for kind in ("nvidia", "amd", "cpu")
        for variable in [
            *accelerator_env(kind, network_interface="x", trace_dir="x"),  # type: ignore[arg-type]
            *debug_env(kind, "legacy", "x"),  # type: ignore[arg-type]
        ]
    ]
    tables += [variable.name for variable in ray_env(1000)]
    written = [
        node.value
        for tree in sources().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[A-Z]+_\w+", node.value)
    ]
    presets = [
        name
        for file in sorted((PACKAGE.parent / "conf").rglob("*.yaml"))
        for name in _environment(yaml.safe_load(file.read_text(encoding="utf-8")))
    ]
    return {*tables, *written, *presets}


def _environment(tree: object) -> list[str]:
    if isinstance(tree, list):
        return [name for item in tree for name in _environment(item)]
    if not isinstance(tree, dict):
        return []
    env = tree.get("env")
    return [*(env if isinstance(env, dict) else []), *(name for value in tree.values() for name in _environment(value))]
