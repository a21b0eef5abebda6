"""Build the device in the environment of this Python, which has the CUDA lock: `python -m tests.fake_gpu.build`.

One library replaces the CUDA runtime, the driver, NCCL and NVML. It has the runtime's name, so that the real one is not
loaded. A function of CUDA that it lacks returns an error and
reports its name.
"""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
SITE = Path(__file__).parent / "site"
OUT = Path(sys.prefix, "fake_gpu")
DEVICE, OPERATORS = OUT / "libcudart.so.13", OUT / "liboperators.so"
_FAMILY = re.compile(r"(__cuda|cuda|cu|cublas|cublasLt|cusolverDn|cusparse|nccl|nvrtc|nvml)[A-Z]\w+$")
# Everything has run when a call returns, therefore these have nothing to do.
_NOTHING_TO_DO = (SOURCES / "nothing_to_do.txt").read_text().split()
_ERRORS = {"cublas": 15, "cusolv": 9, "cuspar": 10, "nccl": 5, "nvrtc": 11, "nvml": 3}
"""Number of "not supported" by the start of a name; else the one of the runtime and the driver."""
_NOT_SUPPORTED = 801


def packages() -> Path:
    return Path(sysconfig.get_paths()["purelib"])


def compile_one(source: Path, target: Path, words: Iterable[str] = ()) -> None:
    site = packages()
    includes = [site / "nvidia/cu13/include", site / "nvidia/nccl/include", site / "torch/include"]
    includes += [site / "torch/include/torch/csrc/api/include"]
    argv = ["g++", "-std=c++20", "-O1", "-fPIC", *(f"-isystem{one}" for one in includes)]
    subprocess.run([*argv, str(source), *words, "-o", str(target)], check=True)


def list_symbols(file: Path, kind: str) -> set[str]:
    """Return the dynamic or, of an object file, plain symbols of this kind: T is defined, U is needed."""
    words = ["nm", *(["-D"] if ".so" in file.name else []), str(file)]
    text = subprocess.run(words, capture_output=True, text=True).stdout
    return {name.split("@")[0] for name in re.findall(rf" {kind} (\S+)", text)}


def declared() -> set[str]:
    """Return the functions of CUDA's headers, which libraries find by name at run time, with their versions."""
    include = packages() / "nvidia/cu13/include"
    driver, runtime = (include / "cuda.h").read_text(), (include / "cuda_runtime_api.h").read_text()
    names = set(re.findall(r"CUresult CUDAAPI\s+(cu\w+)\s*\(", driver))
    names |= set(re.findall(r"#define cu[A-Z]\w+\s+(?:__CUDA_API_PT[DS]Z\()?(cu[A-Z]\w+)\)?", driver))
    return names | set(re.findall(r"cudaError_t CUDARTAPI\s+(cuda\w+)\s*\(", runtime))


def needed() -> set[str]:
    """Return the functions of CUDA that the libraries of torch and vLLM link to, and torch's of NVML."""
    libraries = [*packages().glob("torch/lib/*.so"), *packages().glob("vllm/**/*.so")]
    with ThreadPoolExecutor(2) as pool:
        found = set().union(*pool.map(lambda one: list_symbols(one, "U"), libraries))
    by_name = re.findall(rb"nvml[A-Z]\w+", (packages() / "torch/lib/libc10_cuda.so").read_bytes())
    return {name for name in found if _FAMILY.match(name)} | {name.decode() for name in by_name}


def render_stubs(names: Iterable[str]) -> str:
    """Return C source with a function for each name."""
    lines = ["void fake_gpu_missing(const char *name);"]
    for name in sorted(names):
        error = next((code for start, code in _ERRORS.items() if name.startswith(start)), _NOT_SUPPORTED)
        body = "return 0;" if name in _NOTHING_TO_DO else f'fake_gpu_missing("{name}"); return {error};'
        lines.append(f"int {name}() {{ {body} }}")
    return "\n".join(lines) + "\n"


def build() -> None:
    OUT.mkdir(exist_ok=True)
    objects = {one: OUT / f"{one.stem}.o" for one in SOURCES.glob("*.cpp") if one.stem != "operators"}
    torch = packages() / "torch/lib"
    link = ["-shared", f"-L{torch}", "-ltorch_cpu", "-lc10", "-lc10_cuda"]
    with ThreadPoolExecutor(2) as pool:
        operators = pool.submit(compile_one, SOURCES / "operators.cpp", OPERATORS, link)
        list(pool.map(lambda one: compile_one(*one, ["-c", "-fvisibility=hidden"]), objects.items()))
        own = set().union(*(list_symbols(one, "T") for one in objects.values()))
        stubs = OUT / "stubs.c"
        stubs.write_text(render_stubs(({*needed(), *declared(), *_NOTHING_TO_DO}) - own))
        subprocess.run(["gcc", "-O1", "-fPIC", "-w", "-c", str(stubs), "-o", str(OUT / "stubs.o")], check=True)
        words = [
            "g++",
            "-shared",
            "-Wl,--exclude-libs,ALL",
            *map(str, [*objects.values(), OUT / "stubs.o"]),
            "-ldl",
            "-lpthread",
        ]
        subprocess.run([*words, "-static-libstdc++", f"-Wl,-soname,{DEVICE.name}", "-o", str(DEVICE)], check=True)
        for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"):
            (OUT / name).unlink(missing_ok=True)
            (OUT / name).symlink_to(DEVICE.name)
        operators.result()
    # Does nothing without FAKE_GPU. PYTHONPATH would not do: programs replace it for their children.
    line = f"import os, sys; 'FAKE_GPU' in os.environ and (sys.path.append({str(SITE)!r}), __import__('fake_gpu_hook'))"
    (packages() / "fake_gpu.pth").write_text(line + "\n")


if __name__ == "__main__":
    build()
