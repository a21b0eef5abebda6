"""`python -m slurm_rl doctor`, on this machine: what has no GPU to look at says so, the rest is done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.plugins.health.doctor.finding import save_question
from slurm_rl.plugins.health.doctor.gpus import find_accelerator
from slurm_rl.plugins.health.doctor.judge import NAMES
from slurm_rl.plugins.health.doctor.probes import PROBES, run_probes
from slurm_rl.plugins.health.doctor.table import is_well, render
from tests.unit.plugins.health.doctor.kit import question

ON_GPUS_ALONE = {"driver", "devices", "masks", "clocks", "flash-attn", "rdma"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("doctor")
    # A task that samples nothing: of vLLM's import test_it_knows_vllms_build has its own.
    words = [sys.executable, "-m", "slurm_rl", "doctor", "--json", "+exp=sft_tiny"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((folder / "runs").iterdir()), "it leaves nothing"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def findings(told: dict[str, Any]) -> dict[str, Any]:
    [found] = told["nodes"].values()
    return {one["what"]: one for one in found}


def test_everything_is_looked_at_or_said_not_to_be(told: dict[str, Any]) -> None:
    found = findings(told)
    assert told["well"] is True
    assert found.keys() >= (PROBES.keys() - {"ranks"}) | set(NAMES)
    unseen = {name for name, one in found.items() if one["state"] == "unseen"}
    assert unseen == ON_GPUS_ALONE | {"vllm", "all-reduce between nodes"}
    assert all(found[name]["seen"] for name in unseen)


def test_two_ranks_multiply_and_add(told: dict[str, Any]) -> None:
    found = findings(told)
    assert found["all-reduce in the node"]["value"] > 0 and "2 ranks" in found["all-reduce in the node"]["seen"]
    assert found["matmul"]["value"] > 0


def test_gpus_that_a_preset_has_and_this_machine_has_not_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    asked = question(tmp_path, "+cluster=nvidia_h100")
    save_question(asked)
    found = {"here": run_probes(asked, {name: PROBES[name] for name in ("versions", "driver")})}
    if find_accelerator()[0] != "cpu":
        pytest.skip("there are GPUs here")
    assert not is_well(found)
    assert "WRONG" in render(found) and "do: " in render(found)


@pytest.mark.parametrize("words", [["no.such.key=1"], ["--frobnicate"], ["runs"]])
def test_bad_words_are_refused_before_anything_is_looked_at(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    assert not list(tmp_path.iterdir())
