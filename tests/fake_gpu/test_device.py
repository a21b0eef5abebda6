"""The fake device itself, in the environment of `make fake-gpu`; without one these tests are skipped."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.plan.accelerator import accelerator_env
from slurm_rl.plugins.health.nvidia import check_clocks, check_ecc, check_gpus
from slurm_rl.plugins.health.verdict import NodeSpec
from tests.lock import ROOT

PYTHON = Path(os.environ.get("GPU_VENV", ROOT / ".venv-gpu"), "bin/python")
IS_BUILT = (PYTHON.parents[1] / "fake_gpu/libcudart.so.13").exists()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_BUILT, reason="`make fake-gpu` has not built it (9 GB of packages; GPU_VENV names it)"),
]


def run(
    name: str, *machine: str, launcher: tuple[str, ...] = (), words: tuple[str, ...] = (), **environ: str
) -> tuple[int, str]:
    """Return exit status and output of a program of programs.py on a fake machine."""
    argv = [
        PYTHON,
        "-m",
        "tests.fake_gpu",
        "run",
        *machine,
        PYTHON,
        *launcher,
        "-m",
        "tests.fake_gpu.programs",
        name,
        *words,
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run_out_of_memory", "out of memory 0.4\nTrue"),
        ("share_by_handle", "True"),
        ("replay_graph", "2"),
        ("sleep_and_wake", "256 True"),
        ("restore_draws", "True False"),
    ],
)
def test_device_acts_like_gpu(name: str, words: str) -> None:
    status, output = run(name, "--gpus", "2", "--mem-gb", "8")
    assert status == 0 and words in output, output


def test_device_follows_profile_and_mask() -> None:
    status, output = run("see_devices", "--gpus", "2", "--profile", "a100", CUDA_VISIBLE_DEVICES="1")
    assert status == 0 and "1 (8, 0) NVIDIA A100-SXM4-80GB [0, 584]" in output, output


@pytest.mark.parametrize(
    ("machine", "check", "state", "seen"),
    [
        (("--sick", "1 | SRAM Uncorrectable SEC-DED | 2"), check_ecc, "bad", "GPU 1: 2 uncorrectable SRAM errors"),
        (("--sick", "0 | HW Thermal Slowdown | Active"), check_clocks, "warn", "GPU 0: HW Thermal Slowdown"),
        (("--gpus", "1"), check_gpus, "bad", "1"),
        ((), check_gpus, "warn", "already run"),
        (("--profile", "a100"), check_gpus, "ok", "2 x NVIDIA A100-SXM4-80GB"),
    ],
)
def test_health_checks_see_sick_gpu(machine: tuple[str, ...], check: Any, state: str, seen: str) -> None:
    spec = NodeSpec("nvidia", gpus=2, num_nodes=1, canary="", needs_python=True, checked_at=(0, 0))
    output = run("hold_memory", "--gpus", "2")[1] if state == "warn" and not machine else smi("--gpus", "2", *machine)
    verdict = check(output, 0, spec)
    assert verdict.state == state and seen in verdict.seen, verdict


def smi(*machine: str) -> str:
    argv = [PYTHON, "-m", "tests.fake_gpu", "run", *machine, "nvidia-smi", "-q"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("program", "left_out"),
    [("offload_moments", "wait_stream"), ("offload_moments", "synchronize"), ("gather_on_streams", "wait_stream")],
)
def test_late_mode_shows_missing_synchronisation(program: str, left_out: str) -> None:
    """The right program is equal in late mode; without one of its synchronisations it differs, in late mode only."""
    for words, late, expected in (((), "3", "equal"), ((left_out,), "3", "differ"), ((left_out,), "0", "equal")):
        status, output = run(program, "--late", late, words=words)
        assert status == 0 and output.splitlines()[-1].startswith(expected), (words, late, output)


def test_late_mode_waits_for_events() -> None:
    status, output = run("read_late", "--late", "3")
    assert status == 0 and "True True False True" in output, output


@pytest.mark.parametrize("program", ["share_stale_handle", "wake_in_wrong_order", "open_on_wrong_device"])
def test_exact_mode_fails_as_gpu_does(program: str) -> None:
    status, output = run(program, "--gpus", "2", "--mem-gb", "8")
    assert status == 0 and "refused" in output, output


def test_collectives_move_bytes_between_processes() -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    status, output = run("communicate", "--gpus", "3", launcher=launcher)
    assert status == 0 and "all collectives agree" in output, output


def test_pinned_memory_is_not_rounded_up() -> None:
    [conf] = [one for one in accelerator_env("nvidia") if one.name == "PYTORCH_CUDA_ALLOC_CONF"]
    assert "pinned 310 310" in run("pin_memory", PYTORCH_CUDA_ALLOC_CONF=conf.value)[1]
    assert "pinned 512 310" in run("pin_memory")[1]


def test_unknown_kernel_fails_with_its_name() -> None:
    status, output = run("launch_unknown_kernel")
    assert status != 0 and "the fake GPU does not implement" in output and "spin_kernel" in output, output


def test_machine_ends_without_description() -> None:
    device = PYTHON.parents[1] / "fake_gpu/libcudart.so.13"
    environ = {"LD_PRELOAD": str(device), "FAKE_GPU": "/nowhere", "PATH": os.environ["PATH"]}
    words = ["import ctypes, sys; ctypes.CDLL(sys.argv[1]).cuDeviceGetCount(ctypes.byref(ctypes.c_int()))", str(device)]
    done = subprocess.run([PYTHON, "-S", "-c", *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 2 and "FAKE_GPU must name the folder of a machine" in done.stderr
