"""Parse YAML 1.2 scalars, with errors that name file and line.

PyYAML implements YAML 1.1, where `24:00:00` is 86400 (base 60), `0123` is 83 (octal) and `no` is false. Here a plain
scalar is a number only if it is an integer as Python prints it or a float of YAML 1.2; other scalars are text.
"""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from slurm_rl.errors import ConfigError

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"0|-?[1-9][0-9]*", "-0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _SCALARS.items():
    # An empty scalar is also null.
    first = [*_first, ""] if _name == "null" else list(_first)
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), first)


def read_text(file: Path) -> str:
    """Return the text of a YAML file, without a byte order mark.

    Raises:
        ConfigError: the file is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        action = "save the file as UTF-8"
        raise ConfigError("a YAML file must be UTF-8", seen=f"{file}: {error}", action=action) from None


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Args:
        where: name of the file, for errors.

    Raises:
        ConfigError: a syntax error or a duplicate key, with its line.

    >>> parse_yaml("{a: 24:00:00, b: 0123, c: 1_000, d: no, e: 12, f: 1e-5, g: true}", "x.yaml")
    {'a': '24:00:00', 'b': '0123', 'c': '1_000', 'd': 'no', 'e': 12, 'f': 1e-05, 'g': True}
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = "; ".join(filter(None, (error.problem, error.context)))
    except yaml.YAMLError as error:
        line, problem = "", " ".join(str(error).split())
    except ValueError as error:  # a wrong explicit tag, as in `!!int x`
        line, problem = "", str(error)
    action = "indent with spaces" if "'\\t'" in problem else "correct that line, or the one before it"
    raise ConfigError("the file is not valid YAML", seen=f"{where}{line}: {problem}", action=action)
