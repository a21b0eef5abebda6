"""Runs of a sweep that differ in plain values alone have one composed tree, in which these values are set.

    seed=range(100) optim.lr=1e-4,1e-5      200 configs, composed and resolved once

Hydra and OmegaConf take some 10 ms for each config, a copy of plain dicts takes a tenth of that. What is done here is
exactly theirs where a value is a number, a word or null, and nothing in the config speaks of its key; else it is left
to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

Signature = tuple[str, ...]
"""What a composed tree depends on, the plain values aside."""
PlainValues = list[tuple[str, Any]]
"""Dotted keys and what they are set to, in the order of the words."""


def find_interpolations(tree: object) -> list[str]:
    """All texts of an unresolved tree that may refer to other keys.

    >>> find_interpolations({"a": {"b": "${c.d}/x"}, "e": [1, "y"]})
    ['${c.d}/x']
    """
    if isinstance(tree, str):
        return [tree] if "$" in tree else []
    if isinstance(tree, dict):
        return [text for value in tree.values() for text in find_interpolations(value)]
    return [text for value in tree for text in find_interpolations(value)] if isinstance(tree, list) else []


def is_plain(override: Override, interpolations: Iterable[str]) -> bool:
    """Whether its value can be set in a resolved tree, in which another value of its key stands."""
    if override.is_delete() or override.package is not None:
        return False
    value = override.value()
    if not (value is None or isinstance(value, (bool, int, float, str))):
        return False
    # A reference, an escape, or the word for what is missing: OmegaConf's own.
    if isinstance(value, str) and any(mark in value for mark in ("$", "\\", "???")):
        return False
    # ${.lr} and ${optim} speak of optim.lr, too.
    return not any(part in text for text in interpolations for part in override.key_or_group.split("."))


def sign(overrides: Sequence[Override], interpolations: Sequence[str]) -> tuple[Signature, PlainValues]:
    """What the tree of these overrides depends on, and the plain values in it, in order."""
    lines = [override.input_line or "" for override in overrides]
    texts = [*interpolations, *(line for line in lines if "$" in line)]
    plain = [is_plain(override, texts) for override in overrides]
    words = [
        f"{override.type} {override.key_or_group}" if can_be_set else line
        for override, line, can_be_set in zip(overrides, lines, plain, strict=True)
    ]
    values = [(override.key_or_group, override.value()) for override in itertools.compress(overrides, plain)]
    return tuple(words), values


def set_values(tree: Any, values: PlainValues) -> bool:
    """Set dotted keys that stand in the tree with plain values; False where one does not."""
    for key, value in values:
        *path, name = key.split(".")
        section = tree
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or isinstance(section.get(name, {}), (dict, list)):
            return False
        section[name] = value
    return True
