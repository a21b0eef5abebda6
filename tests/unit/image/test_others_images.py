"""Images of other trainers: their recipes, and `image check` against what their task needs, in a stand-in for a root.

No registry answers where this is made: no recipe has been built. What can be held is: the versions that the recipes
install are those that the presets ask for, and the check finds what is not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config, shipped_dir
from slurm_rl.image.recipe import OTHERS
from slurm_rl.plan.expected import satisfies

WHOLE = {"verl": "0.9.1", "vllm": "0.17.1", "torch": "2.10.0+cu129", "ray": "2.55.1"}


def make_root(folder: Path, packages: dict[str, str]) -> Path:
    """A Python that sees these distributions alone: metadata without code, which nothing here imports."""
    for name, version in packages.items():
        (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
        (folder / f"{name}-{version}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{folder}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        (WHOLE, None),
        (WHOLE | {"verl": "0.8.0"}, "verl is 0.8.0, expected >=0.9,<0.10"),
        ({name: version for name, version in WHOLE.items() if name != "vllm"}, "vllm is not there"),
        ({name: version for name, version in WHOLE.items() if name != "ray"}, "ray is not there"),
    ],
)
def test_the_check_holds_the_image_against_the_needs_of_the_task(
    packages: dict[str, str], says: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = make_root(tmp_path / "root", packages)
    words = ["image", "check", "+exp=verl_ppo_gsm8k", f"cluster.python={python}", f"run_dir={tmp_path}/run"]
    code = main(words)
    told = capsys.readouterr()
    if says is None:
        assert code == 0, told.err
        assert re.search(r"verl +0\.9\.1 +>=0\.9,<0\.10", told.out) and "as expected" in told.out
    else:
        assert code == 2 and says in told.err and "another image of that trainer" in told.err


@pytest.mark.parametrize("task", OTHERS)
def test_a_recipe_installs_what_the_presets_of_its_task_need(task: str) -> None:
    text = (shipped_dir("containers", "requirements.py") / task / "Containerfile").read_text()
    (version,) = re.findall(rf"^ARG {task.upper()}=(\S+)$", text, re.MULTILINE)
    config = load_config(["+cluster=nvidia_h100", f"external={task}"]).external
    assert config is not None and satisfies(version, config.needs.get(task, ""))


def test_every_preset_of_another_trainer_says_what_it_needs() -> None:
    for name in ("verl", "openrlhf", "openrlhf_flat", "maxtext", "trl", "nemo_rl", "prime_rl"):
        config = load_config(["+cluster=nvidia_h100", "cluster.num_nodes=1", f"external={name}"]).external
        assert config is not None and len(config.needs) > 1, name
