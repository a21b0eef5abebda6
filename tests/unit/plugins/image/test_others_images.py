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
from slurm_rl.plan.versions import satisfies
from slurm_rl.plugins.image.recipe import OTHERS

WHOLE = {"verl": "0.9.1", "vllm": "0.17.1", "torch": "2.10.0+cu129", "ray": "2.55.1"}


def make_root(folder: Path, packages: dict[str, str]) -> Path:
    """A Python that sees these distributions alone: metadata without code, which nothing here imports."""
    for name, version in packages.items():
        metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Name: {name}\nVersion: {version}\n")
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


RAY = {"torch": "2.10.0+cu129", "ray": "2.55.1"}
OPENRLHF = RAY | {"deepspeed": "0.18.2", "vllm": "0.17.1"}
ROOTS = {
    "openrlhf_ppo_llama3_8b": OPENRLHF | {"openrlhf": "0.11.2"},
    "openrlhf_dpo_llama3_8b": OPENRLHF | {"openrlhf": "0.11.2"},
    "openrlhf_ppo_llama3_8b_flat": OPENRLHF | {"openrlhf": "0.8.5"},
    "maxtext_grpo_llama3_70b": RAY | {"jax": "0.8.1", "google-tunix": "0.1.7", "vllm": "0.17.1"},
    "maxtext_convert_llama3_70b": RAY | {"jax": "0.8.1", "google-tunix": "0.1.7", "vllm": "0.17.1"},
    "trl_sft_capybara": RAY | {"trl": "1.16.0", "transformers": "5.6.2", "accelerate": "1.12.0"},
}


@pytest.mark.parametrize("name", ROOTS)
def test_what_an_image_lacks_of_another_trainers_needs_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, and without the first of them; the Python is this one, which may be too old for MaxText."""
    config = load_config(["+cluster=nvidia_h100", "cluster.num_nodes=1", f"+exp={name}"]).external
    assert config is not None
    own_python = ".".join(map(str, sys.version_info[:2]))
    fits = satisfies(own_python, config.needs.get("python", ""))
    lacking = next(package for package in config.needs if package != "python")
    packages = ROOTS[name]
    assert config.needs.keys() - {"python"} <= packages.keys()
    for number, present in enumerate((packages, {key: value for key, value in packages.items() if key != lacking})):
        python = make_root(tmp_path / str(number), present)
        words = [f"+exp={name}", "+cluster=local", f"cluster.python={python}", f"run_dir={tmp_path}/run{number}"]
        code = main(["image", "check", *words])
        told = capsys.readouterr()
        if number:
            assert code == 2 and f"{lacking} is not there" in told.err
        else:
            assert code == (0 if fits else 2), told.err
            assert "is not there" not in told.err and (fits or "python is" in told.err)


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
