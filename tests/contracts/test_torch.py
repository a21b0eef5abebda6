"""torch's NCCL backend reads the variables that we set; its headers, also in the CPU build, name them."""

from pathlib import Path

from tests.contracts.source import Package
from tests.contracts.uses import missing_in_binary, names_that_we_set


def test_set_variables_are_read(installed: Package) -> None:
    root = Path(str(installed.root)) / "torch"
    names = {name for name in names_that_we_set() if name.startswith("TORCH_")}
    assert len(names) > 5
    for file in sorted((root / "include/torch/csrc/distributed/c10d").glob("*.hpp")):
        text = file.read_text(encoding="utf-8")
        # For some variables, the header only documents the member that stores the value.
        names -= {name for name in names if f'"{name}"' in text or f"// Stores {name}\n" in text}
    for library in ("libtorch_cpu.so", "libc10.so", "libtorch_python.so"):
        names = missing_in_binary(root / "lib" / library, names)
    assert names == set()
