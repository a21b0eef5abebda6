"""Read a package from its source: definitions, members of classes, and signatures."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class ResolvedName:
    """Definition of a name and the module that contains it."""

    package: Package
    module: str
    node: Definition
    is_method: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{getattr(self.node, 'name', '')}"

    @cached_property
    def lineage(self) -> list[ResolvedName]:
        """Return the class and its bases in this package, nearest first."""
        if not isinstance(self.node, ast.ClassDef):
            return []
        bases = [self.package.find(self.module, _base_name(base)) for base in self.node.bases]
        own = [one for base in bases if base is not None for one in base.lineage]
        return [self, *dict.fromkeys(own)]

    @cached_property
    def members(self) -> dict[str, ResolvedName]:
        """Return the members of instances: methods, fields, and attributes assigned to self."""
        found: dict[str, ResolvedName] = {}
        for one in reversed(self.lineage):
            assert isinstance(one.node, ast.ClassDef)
            for name, node in _assigned_to_self(one.node):
                found[name] = ResolvedName(self.package, one.module, node)
            for name, node in _defined(one.node.body):
                found[name] = ResolvedName(self.package, one.module, node, is_method=True)
        return found

    @cached_property
    def assigned(self) -> set[str]:
        """Return the attributes that methods of the class itself assign to self."""
        return {name for name, _ in _assigned_to_self(self.node)} if isinstance(self.node, ast.ClassDef) else set()

    @cached_property
    def signature(self) -> Signature:
        """Signature of a call: of a function, of a class's __init__, or of its fields if it has none."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return _read_signature(self.node)
        assert isinstance(self.node, ast.ClassDef), self
        if "__init__" in self.members:
            return self.members["__init__"].bound
        return Signature(sorted(self.fields(), key=lambda field: (field.kind, field.default is None)))

    @cached_property
    def bound(self) -> Signature:
        """Signature of a method without its first parameter; a static method keeps all."""
        signature = self.signature
        words = {ast.unparse(one) for one in getattr(self.node, "decorator_list", [])}
        return (
            signature
            if "staticmethod" in words
            else signature.replace(parameters=list(signature.parameters.values())[1:])
        )

    def fields(self) -> Iterator[Parameter]:
        """Yield fields as @dataclass, msgspec and pydantic order them: bases first."""
        fields: dict[str, tuple[ast.AnnAssign, bool]] = {}
        for one in reversed(self.lineage):
            assert isinstance(one.node, ast.ClassDef)
            alone = any("kw_only=True" in ast.unparse(word) for word in one.node.decorator_list)
            for name, node in _defined(one.node.body):
                if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                    fields[name] = node, alone
        for name, (node, alone) in fields.items():
            value = node.value
            words = {}
            if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
                words = {word.arg: ast.unparse(word.value) for word in value.keywords}
                value = value if {"default", "default_factory"} & set(words) else None
            if words.get("init") != "False":
                kind = Parameter.KEYWORD_ONLY if alone or "kw_only" in words else Parameter.POSITIONAL_OR_KEYWORD
                yield Parameter(name, kind, default=Parameter.empty if value is None else None)


class Package:
    """Source below `root`, a folder or an archive with packages."""

    def __init__(self, root: Path | zipfile.Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """Return the syntax tree of module `a.b`; None if it does not exist."""
        if module not in self._trees:
            path = self.root / "/".join(module.split("."))
            files = [path / "__init__.py", path.parent / f"{path.name}.py"]
            file = next((file for file in files if file.is_file()), None)
            self._trees[module] = None if file is None else ast.parse(file.read_text(encoding="utf-8"))
        return self._trees[module]

    def is_package(self, module: str) -> bool:
        return (self.root / "/".join(module.split(".")) / "__init__.py").is_file()

    def find(self, module: str, name: str) -> ResolvedName | None:
        """Find the definition of `name` in `module`, following imports."""
        tree = self.tree(module)
        if tree is None:
            return None
        head, _, rest = name.partition(".")
        for defined, node in _defined(tree.body):
            if defined != head:
                continue
            value = getattr(node, "value", None)
            if isinstance(value, ast.Name):  # an alias
                return self.find(module, f"{value.id}.{rest}".rstrip("."))
            if isinstance(value, ast.Call) and rest:  # an instance
                return self.find(module, f"{ast.unparse(value.func)}.{rest}")
            if isinstance(node, ast.AnnAssign) and rest:
                return self.find(module, f"{ast.unparse(node.annotation)}.{rest}")
            found = ResolvedName(self, module, node)
            return found.members.get(rest) if rest else found
        for node in _statements(tree.body):
            for alias in node.names if isinstance(node, ast.ImportFrom) else []:
                if (alias.asname or alias.name) == head:
                    return self.find(self._absolute(module, node), f"{alias.name}.{rest}".rstrip("."))
        return self.find(f"{module}.{head}", rest) if rest else None

    def get(self, name: str) -> ResolvedName:
        """Find `module:name`; fail if it does not exist."""
        module, _, attribute = name.partition(":")
        found = self.find(module, attribute)
        assert found is not None, f"{name} is not in {self.root}: it moved, or another pin is needed"
        return found

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".") + ([""] if self.is_package(module) else [])
        return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, including those below `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, Definition]]:
    for node in _statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _assigned_to_self(node: ast.ClassDef) -> Iterator[tuple[str, Definition]]:
    for each in ast.walk(node):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield target.attr, each


def _read_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    words = node.args
    plain = [*words.posonlyargs, *words.args]
    required = len(plain) - len(words.defaults)
    parameters = [
        Parameter(
            word.arg,
            Parameter.POSITIONAL_ONLY if index < len(words.posonlyargs) else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if index < required else None,
        )
        for index, word in enumerate(plain)
    ]
    if words.vararg:
        parameters.append(Parameter(words.vararg.arg, Parameter.VAR_POSITIONAL))
    parameters += [
        Parameter(word.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else None)
        for word, default in zip(words.kwonlyargs, words.kw_defaults, strict=True)
    ]
    if words.kwarg:
        parameters.append(Parameter(words.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)
