"""Recipes of other trainers' images install the versions that our presets expect.

The recipes are not built: that needs a registry.
"""

import re
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import shipped_dir
from slurm_rl.plan.versions import satisfies
from slurm_rl.plugins.health import probes
from slurm_rl.plugins.image.recipe import OTHERS
from tests.plans import plan_of

WHOLE = {"python": "3.12.3", "verl": "0.9.1", "vllm": "0.17.1", "torch": "2.10.0+cu129", "ray": "2.55.1"}


@pytest.mark.parametrize(
    ("changed", "seen"),
    [({}, None), ({"verl": "0.8.0"}, "verl 0.8.0, not >=0.9,<0.10"), ({"vllm": None}, "vllm missing")],
)
def test_doctor_names_missing_requirements_of_task(
    changed: dict[str, str | None], seen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("+exp=verl_ppo_gsm8k", "+cluster=local", run_dir=tmp_path)
    monkeypatch.setattr(probes, "collect_report", lambda: {"versions": {**WHOLE, **changed}})
    found = probes.check_versions(plan)
    assert found.state == ("bad" if seen else "ok") and (seen or "verl 0.9.1") in found.seen


@pytest.mark.parametrize("task", OTHERS)
def test_recipe_installs_requirements_of_presets(task: str) -> None:
    text = (shipped_dir("containers", "requirements.py") / task / "Containerfile").read_text()
    (version,) = re.findall(rf"^ARG {task.upper()}=(\S+)$", text, re.MULTILINE)
    config = load_config(["+cluster=nvidia_h100", f"external={task}"]).external
    assert config is not None and satisfies(version, config.needs.get(task, ""))


def test_external_presets_name_their_requirements() -> None:
    for name in ("verl", "openrlhf", "openrlhf_flat", "maxtext", "trl", "nemo_rl", "prime_rl"):
        config = load_config(["+cluster=nvidia_h100", "cluster.num_nodes=1", f"external={name}"]).external
        assert config is not None and len(config.needs) > 1, name
