"""Layers of the packages of slurm_rl, and imports between files.

python -m tests.layers    prints files and lines of each package, the longest files and the import cycles
"""

import ast
from functools import cache
from pathlib import Path

import slurm_rl

PACKAGE = Path(slurm_rl.__file__).parent
LAYERS = (
    ("errors", "run_dir"),
    ("config", "plan", "node"),
    ("algorithms", "data", "models", "envs", "rewards"),
    ("rollout", "workers"),
    ("trainers", "launch"),
    ("cli",),
)
"""From the bottom. A file imports from its own layer and from lower ones."""
PLUGINS = "plugins"
"""Optional features; the layers never import them. The CLI and the hooks load them by name."""
TRAINING = {"algorithms", "data", "models", "envs", "rewards", "rollout", "workers", "trainers"}
"""Packages that need torch. All others are imported on a login node without it."""
_ENTRY = {"__init__", "__main__"}


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def layer_of(package: str) -> int:
    """Return the index in LAYERS; plugins are above all."""
    return next((index for index, names in enumerate(LAYERS) if package in names), len(LAYERS))


@cache
def modules() -> dict[str, Path]:
    return {_name(path): path for path in PACKAGE.rglob("*.py")}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def imports_of(path: Path, *, late: bool = True) -> frozenset[Path]:
    """Return the files of slurm_rl that `path` imports; with late=False only those at the module's top level."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if late else tree.body
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.add(whole if whole in modules() else node.module)
    return frozenset(modules()[name] for name in names if name in modules()) - {path}


def upward_imports() -> list[str]:
    """Return the imports of a higher layer, plugins included."""
    return sorted(
        f"{path.relative_to(PACKAGE)} -> {target.relative_to(PACKAGE)}"
        for path in modules().values()
        if package_of(path) not in _ENTRY
        for target in imports_of(path)
        if package_of(target) not in _ENTRY and layer_of(package_of(target)) > layer_of(package_of(path))
    )


def cycles() -> list[list[str]]:
    """Return the groups of files that import each other in a circle, by Tarjan's algorithm. Late imports count."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    groups: list[list[str]] = []

    def visit(path: Path) -> None:
        index[path] = low[path] = len(index)
        stack.append(path)
        for target in imports_of(path):
            if package_of(target) in _ENTRY:  # exports the API for type checkers and runs none of these imports
                continue
            if target not in index:
                visit(target)
                low[path] = min(low[path], low[target])
            elif target in stack:
                low[path] = min(low[path], index[target])
        if low[path] == index[path]:
            start = stack.index(path)
            group = stack[start:]
            del stack[start:]
            if len(group) > 1:
                groups.append(sorted(str(file.relative_to(PACKAGE)) for file in group))

    for path in modules().values():
        if path not in index and package_of(path) not in _ENTRY:
            visit(path)
    return sorted(groups)


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def main() -> None:
    for package in (*(name for names in LAYERS for name in names), PLUGINS):
        paths = [path for path in modules().values() if package_of(path) == package]
        print(f"{len(paths):5} files {sum(map(lines_of, paths)):7} lines  {package}")
    print(f"{len(modules()):5} files {sum(map(lines_of, modules().values())):7} lines  slurm_rl")
    longest = sorted(modules().values(), key=lines_of)[-8:]
    print(
        "\nlongest files", *(f"{lines_of(path):5}  {path.relative_to(PACKAGE)}" for path in reversed(longest)), sep="\n"
    )
    print("\nimport cycles", *cycles(), sep="\n")
    print("\nimports of a higher layer", *upward_imports(), sep="\n")


if __name__ == "__main__":
    main()
