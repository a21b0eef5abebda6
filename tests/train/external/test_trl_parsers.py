"""The parsers of TRL's scripts accept our presets; test_trl_run.py runs one of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import conf_dir
from tests.train.external.releases import build

EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("trl_*.yaml"))


def build_trl(name: str, *words: str, resume: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the experiment, and the module with its command line."""
    # This machine may have no GPU.
    overrides = [f"external.args.{word}" for word in ("use_cpu=true", *words)]
    args, argv = build(name, *overrides, resume=resume, step="checkpoint-7")
    assert argv[:2] == ["python3", "-m"]
    return args, argv[2:]


CASES = {
    **{f"{name} {resume}": build_trl(name, resume=resume) for name in EXPERIMENTS for resume in (False, True)},
    "override": build_trl("trl_grpo_deepmath", "beta=0.04", "loss_type=dapo", "use_vllm=true", "vllm_mode=colocate"),
    "unknown": build_trl("trl_grpo_deepmath", "no_such_flag=1"),
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Return TRL's parsed arguments for each case, from one process because the import is slow."""
    script = Path(__file__).with_name("parse_trl.py")
    words = json.dumps([argv for _, argv in CASES.values()])
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, str(script), words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("resume", [False, True])
def test_trl_accepts_arguments(name: str, resume: bool, seen: dict[str, Any]) -> None:
    args, _ = CASES[f"{name} {resume}"]
    found = seen[f"{name} {resume}"]
    assert "error" not in found, found
    for key, value in args.items():
        if key == "report_to":
            assert found[key] in (value, []), "TRL's own word for nobody"
        elif "${" not in str(value):
            assert found[key] == value, key
    assert found["output_dir"] == "/run/checkpoints" and found["enable_jit_checkpoint"] is True
    assert found["resume_from_checkpoint"] == ("/run/checkpoints/checkpoint-7" if resume else None)


def test_override_of_any_argument_reaches_trl(seen: dict[str, Any]) -> None:
    found = seen["override"]
    assert (found["beta"], found["loss_type"], found["use_vllm"]) == (0.04, "dapo", True)
    assert found["reward_funcs"] == ["accuracy_reward"] and found["num_generations"] == 8
    assert "no_such_flag" in seen["unknown"]["error"]
