"""The two rules of the house: imports go one way, and only `train` needs torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import slurm_rl

PACKAGE = Path(slurm_rl.__file__).parent
# A room may import from itself and from rooms with a lower number.
ORDER = {
    "errors": 0, "disk": 0, "jsonl": 0, "run_dir": 0, "__init__": 0, "config": 1, "external": 1.5, "plan": 2,
    "node": 3, "image": 3, "slurm": 3, "machines": 3, "ray_jobs": 3, "export": 3,
    "report": 4, "train": 5, "prepare": 6, "cli": 7, "__main__": 8,
}  # fmt: skip
HEAVY = {"torch", "ray", "vllm", "deepspeed", "transformers", "wandb", "tensorboard", "numpy"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("slurm_rl.")}


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in PACKAGE.rglob("*.py")
        for room in imported_rooms(path)
        if ORDER[room] > ORDER[room_of(path)]
    ]
    assert wrong == []


def test_train_never_imports_slurm() -> None:
    wrong = [str(path) for path in (PACKAGE / "train").rglob("*.py") if "slurm" in imported_rooms(path)]
    assert wrong == []


def test_everything_outside_train_imports_without_heavy_packages() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if room_of(path) not in ("train", "__main__")
    ]
    script = "\n".join(
        [
            "import sys",
            f"for name in {sorted(HEAVY)!r}: sys.modules[name] = None",
            *(f"import {module}" for module in modules),
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_the_node_agent_needs_the_standard_library_alone() -> None:
    script = "import slurm_rl.node.agent, sys; print([m for m in ('pydantic', 'yaml', 'hydra') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {script}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_driver_starts_with_what_it_needs_of_torch_alone() -> None:
    """Every second of its imports is one of bring-up; workers import the rest beside each other."""
    late = ("vllm", "deepspeed", "transformers", "ray", "torch.distributed.tensor", "torch._dynamo")
    script = f"import slurm_rl.train.grpo.session, sys; print([m for m in {late!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
