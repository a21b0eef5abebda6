"""Ray reads the flags and variables that we set, and masks GPUs by the expected variables."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from slurm_rl.node.ray_start import OTHER_COMMANDS
from slurm_rl.plan.accelerator import NOSET_FLAGS
from slurm_rl.plan.visibility import MASK_VARIABLES
from tests.contracts.source import Package
from tests.contracts.uses import (
    imports,
    missing_imports,
    missing_in_binary,
    names_that_we_set,
    sources,
    wrong_uses,
)

_BINARIES = ("_raylet.so", "core/src/ray/raylet/raylet", "core/src/ray/gcs/gcs_server")
# Variables that Ray does not read: RunPod sets this one and our code reads it.
_NOT_RAYS = {"RAY_WORKER"}


def test_imported_names_exist_with_expected_arguments(installed: Package) -> None:
    assert list(imports("ray"))
    assert missing_imports("ray", installed) + wrong_uses("ray", installed) == []


def test_ray_start_has_every_flag(installed: Package) -> None:
    flags = {
        word
        for node in ast.walk(sources()["node/ray_cluster.py"])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"^--[a-z-]+", node.value)
    }
    known = {
        node.value.partition("/")[0]
        for node in ast.walk(installed.get("ray.scripts.scripts:start").node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert flags > {"--num-gpus", "--labels"} and flags - known == set()


def test_ray_start_needs_none_of_other_commands(installed: Package) -> None:
    """pandas and FastAPI come with the extras of the other commands."""
    words = """
import sys
from slurm_rl.node.ray_start import OTHER_COMMANDS, without_modules
with without_modules(OTHER_COMMANDS):
    from ray.scripts import scripts
assert "start" in scripts.cli.commands and not {"list", "job", "serve"} & set(scripts.cli.commands)
assert not {"pandas", "fastapi", *OTHER_COMMANDS} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tree = installed.tree("ray.scripts.scripts")
    assert tree is not None and all(f"from {name} import" in ast.unparse(tree) for name in OTHER_COMMANDS)


def test_set_variables_are_read(installed: Package) -> None:
    """Ray ignores an unknown variable without an error."""
    root = Path(str(installed.root)) / "ray"
    names = {name for name in names_that_we_set() if name.startswith("RAY_")} - _NOT_RAYS
    assert len(names) > 20
    for binary in _BINARIES:
        names = missing_in_binary(root / binary, names)
    for file in sorted(root.rglob("*.py")) if names else []:
        text = file.read_text(encoding="utf-8")
        names -= {name for name in names if name in text}
    assert names == set()


def test_visibility_masks_match_ours(installed: Package) -> None:
    places = "ray._private.accelerators"
    theirs = {
        "nvidia": f"{places}.nvidia_gpu:CUDA_VISIBLE_DEVICES_ENV_VAR",
        "amd": f"{places}.amd_gpu:HIP_VISIBLE_DEVICES_ENV_VAR",
    }
    for kind, name in theirs.items():
        node = installed.get(name).node
        assert isinstance(node, ast.Assign) and ast.literal_eval(node.value) == MASK_VARIABLES[kind]  # type: ignore[index]
    condition = ast.unparse(
        installed.get(f"{places}.amd_gpu:AMDGPUAcceleratorManager.get_visible_accelerator_ids_env_var").node
    )
    assert "'ROCR_VISIBLE_DEVICES' in os.environ" in condition, "visibility.py says why ROCR is not left alone"


def test_actor_without_gpus_keeps_its_mask(installed: Package) -> None:
    """Our actors request no GPUs, also on an external Ray cluster with other variables."""
    text = ast.unparse(installed.get("ray._private.utils:set_visible_accelerator_ids").node)
    assert "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO_ENV_VAR, False)" in text
    assert "if not override_on_zero and len(accelerator_ids) == 0:" in text


def test_ray_flags_disable_mask_override(installed: Package) -> None:
    folder = Path(str(installed.root)) / "ray/_private/accelerators"
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py")))
    assert [flag for flag in NOSET_FLAGS if f'"{flag}"' not in text] == []
