"""Recipes install the extras of pyproject.toml and pin nothing twice."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slurm_rl.plugins.image.recipe import OTHERS as OF_OTHERS

ROOT = Path(__file__).parents[2]
ALL = sorted((ROOT / "containers").glob("*/Containerfile"))
OTHERS = [recipe for recipe in ALL if recipe.parent.name in OF_OTHERS]
"""Derived from images of other trainers, which have their own packages and users."""
RECIPES = [recipe for recipe in ALL if recipe not in OTHERS]


def requirements_of(extra: str) -> list[str]:
    script = ROOT / "containers" / "requirements.py"
    # No site packages, as in an image.
    done = subprocess.run([sys.executable, "-S", str(script), extra], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_derived_image_is_checked_for_its_extra() -> None:
    """The check may download nothing."""
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = tree["optional-dependencies"]
    wanted = {*tree["dependencies"], *extras["rocm"], *extras["train"], *extras["prepare"]}
    assert set(requirements_of("rocm")) == wanted - {"slurm_rl[train]", "slurm_rl[prepare]"}
    text = (ROOT / "containers/rocm/Containerfile").read_text()
    assert "requirements.py rocm > /build/requirements.txt" in text
    [vllm] = (Requirement(one) for one in extras["cuda"] if one.startswith("vllm"))
    [version] = (part.version for part in vllm.specifier)
    assert f"vllm-openai-rocm:v{version}\n" in text
    [held] = re.findall(r"pip install --no-index --requirement /build/requirements.txt '(.+)'", text)
    assert Requirement(held).specifier.contains(version)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_images_install_only_hashed_lock(recipe: Path) -> None:
    text = recipe.read_text()
    assert "--no-deps --require-hashes --requirement /dev/stdin" in text
    fetching = [line for line in text.splitlines() if "pip install" in line and "--no-index" not in line]
    assert "--extra-index-url" not in text and len(fetching) == 1
    # flash-attn's setup.py looks for a wheel online, for which no lock has a hash.
    assert "FLASH_ATTENTION_FORCE_BUILD=TRUE" in text or recipe.parent.name != "cuda"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_recipe_pins_nothing_that_extras_pin(recipe: Path) -> None:
    lines = [line for line in recipe.read_text().splitlines() if not line.startswith("#")]
    pinned = {match.lower() for match in re.findall(r"\b([A-Za-z][\w-]*)==\d", "\n".join(lines))}
    assert not pinned & {name_of(requirement) for requirement in requirements_of(recipe.parent.name)}


@pytest.mark.parametrize("recipe", OTHERS, ids=lambda path: path.parent.name)
def test_image_over_one_of_others_adds_one_version_of_trainer_and_no_code(recipe: Path) -> None:
    text = recipe.read_text()
    added = re.findall(rf"{recipe.parent.name}(?:\[[\w-]+\])?==\$\{{(\w+)\}}", text)
    assert added and all(re.search(rf"^ARG {name}=\d", text, re.MULTILINE) for name in added)
    assert not re.search(r"^(COPY|ADD) ", text, re.MULTILINE)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_image_runs_as_user_and_holds_no_code(recipe: Path) -> None:
    text = recipe.read_text()
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    assert not re.search(r"^(COPY|ADD) .*slurm_rl", text, re.MULTILINE)


def test_flash_attn_is_built_for_requested_gpus() -> None:
    text = (ROOT / "containers/cuda/Containerfile").read_text()
    found = dict(re.findall(r'^ARG (TORCH_CUDA_ARCH_LIST|FLASH_ATTN_CUDA_ARCHS)="([\d.;]+)"$', text, re.MULTILINE))
    assert found["FLASH_ATTN_CUDA_ARCHS"] == found["TORCH_CUDA_ARCH_LIST"].replace(".", "")
    # The build command must see both variables.
    assert text.index("ARG FLASH_ATTN_CUDA_ARCHS") < text.index("--no-build-isolation") < text.index("FROM ${FINAL}")
