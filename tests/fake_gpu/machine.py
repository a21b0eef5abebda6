"""Describe a machine and run a command on it.

    python -m tests.fake_gpu run --gpus 2 --profile h100 python -m slurm_rl doctor

The command runs with the environment of this Python, in which `make fake-gpu` has built the device.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.fake_gpu.build import DEVICE, OPERATORS, OUT

TOOLS = Path(__file__).parent / "bin"


@dataclass(frozen=True)
class Profile:
    """A kind of GPU."""

    name: str
    capability: tuple[int, int]
    num_processors: int
    shared_bytes: int
    """Shared memory that a block can have, in bytes."""
    memory_mib: int
    context_mib: int = 520
    """Memory that a process takes on a GPU before its first tensor."""


PROFILES: Final[dict[str, Profile]] = {
    "a100": Profile("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166_912, 81_920),
    "h100": Profile("NVIDIA H100 80GB HBM3", (9, 0), 132, 232_448, 81_559),
    "h200": Profile("NVIDIA H200", (9, 0), 132, 232_448, 143_771),
}


def write_machine(folder: Path, profile: Profile, count: int) -> None:
    """Write the description that the device reads."""
    numbers = (count, *profile.capability, profile.num_processors, profile.shared_bytes)
    sizes = (profile.memory_mib * 2**20, profile.context_mib * 2**20)
    (folder / "machine").write_text(" ".join(map(str, (*numbers, *sizes))) + f" {profile.name}\n", encoding="utf-8")


def build_environment(folder: Path, environ: Mapping[str, str], prefix: Path = Path(sys.prefix)) -> dict[str, str]:
    """Return the environment of a process on the machine.

    Args:
        folder: of the machine; %h in it is replaced by the name of the host.
        prefix: the environment with the device.
    """
    out = prefix / OUT.name
    device = out / DEVICE.name

    def join(name: str, *first: Path | str) -> str:
        return ":".join([*map(str, first), *filter(None, [environ.get(name)])])

    return {
        **environ,
        "FAKE_GPU": str(folder),
        "FAKE_GPU_LIBRARY": str(device),
        "FAKE_GPU_OPERATORS": str(out / OPERATORS.name),
        "LD_PRELOAD": join("LD_PRELOAD", device),
        "LD_LIBRARY_PATH": join("LD_LIBRARY_PATH", out),
        "PATH": join("PATH", prefix / "bin", TOOLS),
        "VLLM_NCCL_SO_PATH": str(device),
        "VLLM_CUDART_SO_PATH": str(device),
        "TRITON_LIBCUDA_PATH": str(out),
        "TRITON_INTERPRET": "1",
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1"),
    }


@contextmanager
def fake_machine(profile: Profile, count: int) -> Iterator[dict[str, str]]:
    """Yield the environment for processes of a new machine."""
    folder = Path(tempfile.mkdtemp(prefix="fake-gpu-"))
    try:
        write_machine(folder, profile, count)
        yield build_environment(folder, os.environ)
    finally:
        shutil.rmtree(folder)


def main(words: Sequence[str]) -> int:
    main_parser = argparse.ArgumentParser(prog="python -m tests.fake_gpu")
    parser = main_parser.add_subparsers(required=True).add_parser("run", help="run a command on a fake machine")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--profile", choices=PROFILES, default="h100")
    parser.add_argument("--mem-gb", type=float, help="memory of one GPU; default: the profile's")
    parser.add_argument("--sick", action="append", default=[], help="a line of nvidia-smi: '0 | HW Slowdown | Active'")
    parser.add_argument("--late", type=float, metavar="SECONDS", help="queue work on streams for at most this long")
    parser.add_argument("--dry", action="store_true", help="drop work on tensors of 64 KiB and more")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = main_parser.parse_args(words)
    if not DEVICE.exists():
        parser.error(f"{DEVICE} does not exist. Next: make fake-gpu")
    profile = PROFILES[args.profile]
    if args.mem_gb is not None:
        profile = replace(profile, memory_mib=int(args.mem_gb * 1e9 / 2**20))
    with fake_machine(profile, args.gpus) as environment:
        Path(environment["FAKE_GPU"], "sick").write_text("".join(f"{line}\n" for line in args.sick), encoding="utf-8")
        modes = {"FAKE_GPU_LATE": str(args.late or ""), "FAKE_GPU_DRY": "1" if args.dry else ""}
        environment |= {name: value for name, value in modes.items() if value}
        return subprocess.run(args.command, env=environment, check=False).returncode
