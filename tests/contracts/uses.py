"""Collect our uses of a package and of environment variables, so that a new use is checked without a new row."""

import ast
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from pathlib import Path

import yaml

from slurm_rl.plan.accelerator import accelerator_env, debug_env, ray_env, read_rows
from tests.contracts.source import Package, ResolvedName
from tests.layers import PACKAGE


@dataclass(frozen=True)
class Use:
    """A use of a package's name in our sources, with its call if it is called."""

    place: str
    name: str
    call: ast.Call | None = None


@cache
def sources() -> dict[str, ast.Module]:
    """Return path below slurm_rl -> syntax tree."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def imports(package: str) -> Iterator[tuple[str, str, str]]:
    """Yield (place, module, name) of each `from module import name`; name is empty for `import module`."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and _of(package, node.module or ""):
                yield from ((f"{path}:{node.lineno}", node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((f"{path}:{node.lineno}", a.name, "") for a in node.names if _of(package, a.name))


def missing_imports(package: str, source: Package) -> list[str]:
    """Return our imports that the package's source does not define."""
    return [
        f"{place}: {module} {name}"
        for place, module, name in imports(package)
        if source.tree(module) is None
        or (name and source.find(module, name) is None and source.tree(f"{module}.{name}") is None)
    ]


def imported_uses(package: str) -> Iterator[tuple[Use, str]]:
    """Yield uses of imported names, `name` or `name.attribute`, with their module."""
    for path, tree in sources().items():
        names = _imported(package, tree)
        for use in _uses_in(path, tree, set(names)):
            head, _, rest = use.name.partition(".")
            module, name = names[head]
            yield Use(use.place, f"{name}.{rest}".rstrip("."), use.call), module


def wrong_uses(package: str, source: Package) -> list[str]:
    """Return uses of imported names that the source does not define, or calls that do not fit the signature."""
    wrong = []
    for use, module in imported_uses(package):
        found = source.find(module, use.name) or (source.tree(f"{module}.{use.name}") and True)
        if not found:
            wrong.append(f"{use.place}: {module} has no {use.name}")
        elif (
            use.call is not None
            and isinstance(found, ResolvedName)
            and not isinstance(found.node, ast.Assign | ast.AnnAssign)
        ):
            try:
                check_call(found, use.call, method=found.is_method)
            except TypeError as error:
                wrong.append(f"{use.place}: {use.name}: {error}")
    return wrong


def find_uses(path: str, receiver: str) -> Iterator[Use]:
    """Yield attributes of the expression `receiver` in our file: `step` of `self._engine.step()`.

    `scope/expression` searches only one class or function.
    """
    scope, _, expression = receiver.rpartition("/")
    for node, call in _with_calls(_find_scope(path, scope) if scope else sources()[path]):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == expression:
            yield Use(f"slurm_rl/{path}:{node.lineno}", node.attr, call)


def classes_over(package: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (our file, our class, module, name) of each class derived from one of the package."""
    for path, tree in sources().items():
        names = _imported(package, tree)
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else []:
                plain = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
                if isinstance(node, ast.ClassDef) and plain in names:
                    yield path, node.name, *names[plain]


def calls_by_name(folder: str, functions: set[str]) -> Iterator[tuple[str, str, set[str], int]]:
    """Yield (place, method, keyword names, number of positional arguments) of calls such as f("method", args=,
    kwargs=).
    """
    for path, tree in sources().items():
        for node in ast.walk(tree) if path.startswith(folder) else []:
            if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in functions:
                continue
            words = {word.arg: word.value for word in node.keywords}
            args, rest = words.pop("args", ast.Tuple([])), [*node.args[1:], *words.values()]
            dictionaries = [each for value in rest for each in ast.walk(value) if isinstance(each, ast.Dict)]
            keys = {str(key.value) for each in dictionaries for key in each.keys if isinstance(key, ast.Constant)}
            if isinstance(node.args[0], ast.Constant):
                count = len(args.elts) if isinstance(args, ast.Tuple) else 0
                yield f"slurm_rl/{path}:{node.lineno}", str(node.args[0].value), keys, count


def our_class(path: str, name: str) -> ResolvedName:
    """Return the class with this name in our file, at any depth."""
    return ResolvedName(our_package(), ".".join(Path("slurm_rl", path).with_suffix("").parts), _find_scope(path, name))


def check_call(found: ResolvedName, call: ast.Call, *, method: bool = False) -> None:
    """Raise TypeError if the call does not fit the signature.

    Arguments passed by * or ** are unknown; then only the others are compared.
    """
    signature = found.bound if method else found.signature
    stars = any(isinstance(word, ast.Starred) for word in call.args) or any(word.arg is None for word in call.keywords)
    plain = [None for word in call.args if not isinstance(word, ast.Starred)]
    named = {word.arg: None for word in call.keywords if word.arg is not None}
    (signature.bind_partial if stars else signature.bind)(*plain, **named)


def unaccepted_names(found: ResolvedName, names: set[str], *, method: bool = False) -> set[str]:
    """Return the names that the function does not accept as arguments."""
    parameters = (found.bound if method else found.signature).parameters
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
        return set()
    return names - set(parameters)


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


def missing_in_binary(file: Path, names: set[str]) -> set[str]:
    """Return the names that are no string constant of a compiled file."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {name for name in names if data.find(name.encode() + b"\0") < 0}


@cache
def our_package() -> Package:
    return Package(Path(PACKAGE).parent)


def _find_scope(path: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    nodes = (node for node in ast.walk(sources()[path]) if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return next(node for node in nodes if node.name == name)


def _imported(package: str, tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Return local name -> (module, name there)."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and _of(package, node.module or "")
        for alias in node.names
    }


def _uses_in(path: str, tree: ast.AST, names: set[str]) -> Iterator[Use]:
    for node, call in _with_calls(tree):
        if isinstance(node, ast.Name) and node.id in names:
            yield Use(f"slurm_rl/{path}:{node.lineno}", node.id, call)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield Use(f"slurm_rl/{path}:{node.lineno}", f"{node.value.id}.{node.attr}", call)


def _with_calls(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.Call | None]]:
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        yield node, called.get(id(node))


def _of(package: str, module: str) -> bool:
    return module == package or module.startswith(f"{package}.")
