"""Runs on fake GPUs compute in float32 what the same runs compute on a CPU, and tests/gpu passes.

The CPU's engine runs vLLM's GPU model runner in Triton's interpreter, so that both sample the same tokens.
`test_table_has_row_of_each_run` prints the table of docs/fake-gpu.md.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fake_gpu.test_device import PYTHON, pytestmark  # noqa: F401  (the same environment)
from tests.lock import ROOT
from tests.whole_run import exact_rows, finish

SFT = ("+exp=sft_tiny", "supervised.max_steps=4", "supervised.batch_size=32", "data.num_eval=40", "model.dtype=float32")

GRPO = ("+exp=demo", "warmup.num_steps=2", "warmup.batch_size=16", "trainer.num_steps=2", "trainer.prompts_per_step=4")
GRPO += ("algorithm.group_size=4", "data.num_eval=4", "rollout.max_num_seqs=16", "rollout.enforce_eager=true")
GRPO += ("reward.verifiers.arithmetic=null", f"reward.function={ROOT / 'tests/gpu/reward.py'}:score")
EXACT = (*GRPO, "model.dtype=float32", "policy.num_workers=1", "rollout.num_engines=1")
PPO = (*EXACT, "+algorithm=ppo")
COLOCATED, SPLIT = ("rollout.colocate=true",), ("rollout.colocate=false",)
CONTINUOUS = (*SPLIT, "rollout.max_off_policy_steps=1", "rollout.inflight_weight_updates=true")
# Between engine and policy: rounding only, which differs.
_NOISE = ("mismatch/", "sync/probe_difference")


@dataclass(frozen=True)
class Case:
    """A run on both: words of both, words of the GPUs only, number of GPUs."""

    words: tuple[str, ...]
    on_gpus: tuple[str, ...]
    num_gpus: int
    exact_steps: int = 99
    """Training steps that are equal. Later ones depend on the moment at which weights arrive."""
    options: tuple[str, ...] = ()
    """Options of the machine."""


CASES: Final[dict[str, Case]] = {
    "SFT, two devices": Case(SFT, (), 2),
    "GRPO, colocated": Case(EXACT, COLOCATED, 1),
    "GRPO, split": Case(EXACT, SPLIT, 2),
    "GRPO, continuous": Case(EXACT, CONTINUOUS, 2, exact_steps=1),
    "GRPO, split, late": Case(EXACT, SPLIT, 2, options=("--late", "2")),
    "PPO, colocated": Case(PPO, COLOCATED, 1),
}
_table: list[str] = ["| run | step | on | loss | gradient norm | reward |", "|---|---|---|---|---|---|"]


def start(python: Path | str, machine: Sequence[str], folder: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a run; on CPU without a machine."""
    device = [str(PYTHON), "-m", "tests.fake_gpu", "run", *machine] if machine else []
    argv = [*device, str(python), "-m", "slurm_rl", *words, f"run_dir={folder}", "logging.wandb.mode=disabled"]
    environ = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state"), "PYTHONPATH": str(ROOT)}
    if not machine:
        environ |= _v2_runner(folder.parent / "triton")
    return subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(python: Path | str, machine: Sequence[str], folder: Path, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of a run."""
    output = finish(start(python, machine, folder, words), timeout_s=2400)
    assert not machine or f"{machine[1]} x NVIDIA H100 80GB HBM3" in output, output
    return exact_rows(folder)


def _v2_runner(folder: Path) -> dict[str, str]:
    """Return the environment in which vLLM's CPU build uses the GPU model runner and Triton's interpreter."""
    folder.mkdir(exist_ok=True)
    if not (folder / "triton").exists():
        [triton] = PYTHON.parents[1].glob("lib/python*/site-packages/triton")
        (folder / "triton").symlink_to(triton)
    (folder / "sitecustomize.py").write_text((Path(__file__).parent / "site/fake_gpu_no_driver.py").read_text())
    path = f"{folder}:{ROOT}"
    return {"PYTHONPATH": path, "VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}


@cache
def run_on_cpu(folder: Path, words: tuple[str, ...]) -> list[dict[str, Any]]:
    return run(sys.executable, (), folder / f"cpu-{abs(hash(words))}", words)


def compare(on_cpu: dict[str, Any], on_gpus: dict[str, Any]) -> None:
    keys = [key for key in on_cpu.keys() & on_gpus.keys() if key != "stage" and not key.startswith(_NOISE)]
    assert len(keys) > 2
    assert {key: on_gpus[key] for key in keys} == pytest.approx({key: on_cpu[key] for key in keys}, rel=1e-5, abs=1e-6)
    for row in (on_cpu, on_gpus):
        assert all(abs(value) < 1e-5 for key, value in row.items() if key.startswith(_NOISE))


def render(name: str, place: str, row: dict[str, Any]) -> str:
    found = [row.get(key) for key in ("policy/loss", "policy/grad_norm", "reward/mean")]
    return f"| {name} | {row['step']} | {place} | " + " | ".join("" if v is None else f"{v:.6f}" for v in found) + " |"


@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", CASES)
def test_run_on_fake_gpus_equals_cpu(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    case = CASES[name]
    on_cpu = run_on_cpu(tmp_path_factory.getbasetemp(), case.words)
    machine = ("--gpus", str(case.num_gpus), "--mem-gb", "12", *case.options)
    on_gpus = run(PYTHON, machine, tmp_path / "gpus", (*case.words, *case.on_gpus))
    assert [row["stage"] for row in on_cpu] == [row["stage"] for row in on_gpus]
    steps = 0
    for one, other in zip(on_cpu, on_gpus, strict=True):
        if one["stage"] in ("sft", "grpo"):
            _table.extend((render(name, "CPU", one), render(name, "GPU", other)))
        steps += one["stage"] == "grpo"
        if steps <= case.exact_steps:
            compare(one, other)


def test_table_has_row_of_each_run(record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the table of the runs above."""
    if len(_table) < 3:
        pytest.skip("no run before this test in this process")
    with capsys.disabled():
        print("\n" + "\n".join(_table))
    assert all(any(line.startswith(f"| {name} ") for line in _table) for name in CASES)


@pytest.mark.timeout(2700)
def test_grpo_on_two_fake_gpus_agrees_with_engines(tmp_path: Path) -> None:
    """Two policy workers and two engines share the GPUs: sleep, wake, weights by handle, in bfloat16."""
    rows = run(PYTHON, ("--gpus", "2", "--mem-gb", "12"), tmp_path / "gpus", GRPO)
    steps = [row for row in rows if row["stage"] == "grpo"]
    assert len(steps) == 2
    for step in steps:
        assert step["policy/grad_norm"] > 0 and step["mismatch/mean"] < 5e-3 and step["sync/probe_difference"] < 2e-2


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("file", ["test_engine.py"])
def test_gpu_tests_pass_on_fake_gpus(file: str, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'gpu'}", f"tests/gpu/{file}"]
    argv = [PYTHON, "-m", "tests.fake_gpu", "run", "--gpus", "2", "--mem-gb", "16", PYTHON, *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:] + done.stderr[-3000:]
