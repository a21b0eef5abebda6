"""Record the arguments of trainers that are on no package index from their repositories.

    git clone https://github.com/NVIDIA-NeMo/RL && git clone https://github.com/PrimeIntellect-ai/prime-rl
    git clone https://github.com/THUDM/slime && git clone https://github.com/allenai/open-instruct
    python -m tests.train.external.record nemo_rl RL
    python -m tests.train.external.record prime_rl prime-rl
    python -m tests.train.external.record slime slime
    python -m tests.train.external.record open_instruct open-instruct

Records names, types and defaults of the checked-out commit; test_recorded_parsers.py checks our command lines against
them. After an update, its failures show the changes in those projects.
"""

import ast
import json
import re
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
    return {"config": NEMO_RL_CONFIG, "flags": flags, "keys": _types(tree, _DEPTH), "limit": _record_limit(checkout)}


def _record_limit(checkout: Path) -> dict[str, Any]:
    """Record the units of `checkpoint_must_save_by`, in order, and what each training loop prints at its end."""
    timer = ast.parse((checkout / "nemo_rl/utils/timer.py").read_text(encoding="utf-8"))
    (convert,) = (
        node for node in timer.body if isinstance(node, ast.FunctionDef) and node.name == "convert_to_seconds"
    )
    (units,) = (node.targets[0] for node in convert.body if isinstance(node, ast.Assign))
    assert isinstance(units, ast.Tuple)
    said: dict[str, list[str]] = {}
    for path in sorted((checkout / "nemo_rl/algorithms").glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        words = {node.args[0].value for node in calls if node.args and isinstance(node.args[0], ast.Constant)}
        for word in sorted(word for word in words if isinstance(word, str) and word.startswith("Timeout")):
            said.setdefault(word, []).append(path.stem)
    return {"units": [ast.unparse(one) for one in units.elts], "said": said}


def _types(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {key: _types(below, depth - 1) for key, below in value.items()} if depth else "table"
    if isinstance(value, str) and value.startswith("${"):
        return "reference"
    return type(value).__name__


def _calls(source: str, method: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call for call in calls if method in (getattr(call.func, "attr", None), getattr(call.func, "id", None))]


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


def record_slime(checkout: Path) -> dict[str, Any]:
    """Record slime's own arguments, and the flags of Megatron and SGLang that its scripts use."""
    source = (checkout / "slime/utils/arguments.py").read_text(encoding="utf-8")
    calls = [*_calls(source, "add_argument"), *_calls(source, "reset_arg")]
    own: dict[str, dict[str, str]] = {}
    for call in calls:
        names = [one.value for one in call.args if isinstance(one, ast.Constant)]
        kept = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg in ("type", "action", "nargs")}
        own |= {str(name): {str(key): value for key, value in kept.items()} for name in names}
    texts = [path.read_text(encoding="utf-8") for path in sorted((checkout / "scripts").rglob("*.sh"))]
    used = {flag for text in texts for flag in re.findall(r"^ +(--[a-z][a-z0-9-]+)", text, re.MULTILINE)}
    return {"own": own, "used": sorted(used - own.keys())}


_OPEN_INSTRUCT_FILES = ("grpo_utils", "olmo_core_utils", "dataset_transformation", "model_utils", "data_loader")
_OPEN_INSTRUCT_CLASSES = (
    *("ExperimentConfig", "TrainingConfig", "LoggingConfig", "CheckpointConfig", "GRPOExperimentConfig"),
    *("TokenizerConfig", "ModelConfig", "StreamingDataLoaderConfig", "VLLMConfig"),
)


def record_open_instruct(checkout: Path) -> dict[str, Any]:
    """Record the fields of the dataclasses that grpo_fast.py parses, with their types and literal defaults."""
    fields: dict[str, list[str | None]] = {}
    trees = [ast.parse((checkout / f"open_instruct/{name}.py").read_text("utf-8")) for name in _OPEN_INSTRUCT_FILES]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda node: node.name == "GRPOExperimentConfig"):
        if node.name in _OPEN_INSTRUCT_CLASSES:
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    default = ast.unparse(one.value) if one.value is not None else None
                    fields[one.target.id] = [ast.unparse(one.annotation), default]
    return {"fields": fields}


def _unquoted(field: ast.AnnAssign) -> ast.AnnAssign:
    if isinstance(field.annotation, ast.Constant) and isinstance(field.annotation.value, str):
        field.annotation = ast.parse(field.annotation.value, mode="eval").body
    return field


RECORDERS: Final[dict[str, Callable[[Path], dict[str, Any]]]] = {
    "nemo_rl": record_nemo_rl,
    "prime_rl": record_prime_rl,
    "slime": record_slime,
    "open_instruct": record_open_instruct,
}


def main() -> None:
    name, checkout = sys.argv[1], Path(sys.argv[2])
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%H of %cs"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    found = {"commit": commit, **RECORDERS[name](checkout)}
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
