"""The two rules of the house: imports go one way, and only what trains needs torch."""

from __future__ import annotations

import subprocess
import sys

from tests.rooms import LAUNCHERS, PACKAGE, PAGE, RANK, TRAINING, imported_rooms, read_arrows, render, room_of

HEAVY = {"torch", "ray", "vllm", "deepspeed", "transformers", "wandb", "tensorboard", "numpy"}


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in PACKAGE.rglob("*.py")
        for room in imported_rooms(path)
        if RANK[room] > RANK[room_of(path)]
    ]
    assert wrong == []


def test_no_launcher_imports_another() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {imported_rooms(path) & LAUNCHERS}"
        for path in PACKAGE.rglob("*.py")
        if room_of(path) in LAUNCHERS and imported_rooms(path) & LAUNCHERS
    ]
    assert wrong == []


def test_every_room_has_a_rank() -> None:
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} == set(RANK)


def test_the_picture_of_the_rooms_is_that_of_the_code() -> None:
    assert read_arrows(PAGE.read_text()) == read_arrows(render()), "draw it anew: python -m tests.rooms"


def test_training_never_imports_what_starts_it() -> None:
    starting = {"cli", *(room for room in RANK if room.startswith("launchers"))}
    wrong = [
        str(path) for room in TRAINING for path in (PACKAGE / room).rglob("*.py") if imported_rooms(path) & starting
    ]
    assert wrong == []


def test_everything_outside_training_imports_without_heavy_packages() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
        if room_of(path) not in TRAINING | {"__main__"}
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
    script = f"import slurm_rl.trainers.grpo.run_grpo, sys; print([m for m in {late!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
