"""Parse arguments with prime-rl's own parser, pydantic_config.cli, into classes recorded from its `RLConfig`.

    python parse_prime_rl.py <folder of prime-pydantic-config> <record> <arguments>

Prints the result as JSON; on invalid arguments it exits as `rl` does.
"""

import ast
import builtins
import json
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def build_config(record: Mapping[str, Any]) -> type:
    """Build the recorded `RLConfig`."""
    from pydantic import Field
    from pydantic_config import BaseConfig  # type: ignore[import-not-found]

    names = {**vars(typing), "Field": Field, "BaseConfig": BaseConfig, "Path": Path, "AfterValidator": lambda _: None}
    for one in record["classes"]:
        if "alias" in one:
            _define_tables(one["alias"], names)
            names[one["name"]] = eval(one["alias"], names)
            continue
        body = "\n".join(f"    {line}" for line in [*one["body"], "pass"])
        source = f"class {one['name']}({', '.join(one['bases'])}):\n{body}\n"
        _define_tables(source, names)
        exec(compile(source, "recorded", "exec", dont_inherit=True), names)
    found: type = names["RLConfig"]
    return found


def _define_tables(source: str, names: dict[str, Any]) -> None:
    """Define each name that was not recorded (from another module of prime-rl) as a table."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            names.setdefault(node.id, dict[str, Any])


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from pydantic_config import cli

    config = build_config(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    print(cli(config, args=sys.argv[3:]).model_dump_json())


if __name__ == "__main__":
    main()
