"""Record the arguments of NeMo-RL and prime-rl from their repositories: they are on no package index.

    git clone https://github.com/NVIDIA-NeMo/RL && git clone https://github.com/PrimeIntellect-ai/prime-rl
    python -m tests.train.external.record nemo_rl RL
    python -m tests.train.external.record prime_rl prime-rl

Records names, types and defaults of the checked-out commit; test_recorded_parsers.py checks our command lines against
them. After an update, its failures show the changes in those projects.
"""

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER = Path(__file__).with_name("recorded")
NEMO_RL_CONFIG = "examples/configs/grpo_math_1B.yaml"
PRIME_RL_CONFIG = "examples/basic/reverse-text/rl.toml"
_PRIME_RL_CONFIGS = "packages/prime-rl-configs/src/prime_rl/configs"
# The launcher, and the file whose missing types are taken to be tables.
_PRIME_RL_FILES = ("shared.py", "rl.py")
_DEPTH = 4


def record_nemo_rl(checkout: Path) -> dict[str, Any]:
    """Record the config named by its preset: each key with the type of its value, by section."""
    tree = yaml.safe_load((checkout / NEMO_RL_CONFIG).read_text(encoding="utf-8"))
    # Arguments parsed by `parse_args`; the rest are Hydra's.
    script = (checkout / "examples/run_grpo.py").read_text(encoding="utf-8")
    flags = [call.args[0].value for call in _calls(script, "add_argument") if isinstance(call.args[0], ast.Constant)]
    return {"config": NEMO_RL_CONFIG, "flags": flags, "keys": _types(tree, _DEPTH)}


def _types(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {key: _types(below, depth - 1) for key, below in value.items()} if depth else "table"
    if isinstance(value, str) and value.startswith("${"):
        return "reference"
    return type(value).__name__


def _calls(source: str, method: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == method]


def record_prime_rl(checkout: Path) -> dict[str, Any]:
    """Record the fields of `RLConfig` and its nested classes, and the example named by its preset."""
    classes: list[dict[str, Any]] = []
    for name in _PRIME_RL_FILES:
        tree = ast.parse((checkout / _PRIME_RL_CONFIGS / name).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
                lines = [ast.unparse(_unquoted(one)) for one in fields]
                classes.append({"name": node.name, "bases": [ast.unparse(base) for base in node.bases], "body": lines})
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias" and node.value:
                classes.append({"name": ast.unparse(node.target), "alias": ast.unparse(node.value)})
    example = tomllib.loads((checkout / PRIME_RL_CONFIG).read_text(encoding="utf-8"))
    return {"config": PRIME_RL_CONFIG, "example": example, "classes": classes}


def _unquoted(field: ast.AnnAssign) -> ast.AnnAssign:
    if isinstance(field.annotation, ast.Constant) and isinstance(field.annotation.value, str):
        field.annotation = ast.parse(field.annotation.value, mode="eval").body
    return field


RECORDERS: Final[dict[str, Callable[[Path], dict[str, Any]]]] = {
    "nemo_rl": record_nemo_rl,
    "prime_rl": record_prime_rl,
}


def main() -> None:
    name, checkout = sys.argv[1], Path(sys.argv[2])
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%H of %cs"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    found = {"commit": commit, **RECORDERS[name](checkout)}
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
