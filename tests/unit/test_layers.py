import re
import subprocess
import sys
from pathlib import Path

from tests.layers import LAYERS, PACKAGE, PLUGINS, TRAINING, imports_of, modules, package_of, upward_imports
from tests.lock import ROOT

HEAVY = {"torch", "ray", "vllm", "deepspeed", "transformers", "wandb", "tensorboard", "numpy"}


def test_package_has_its_layer() -> None:
    names = {name for layer in LAYERS for name in layer} | {PLUGINS, "__init__", "__main__"}
    assert {package_of(path) for path in modules().values()} == names


def test_imports_go_to_lower_layers() -> None:
    assert upward_imports() == []


def test_launchers_do_not_import_each_other() -> None:
    def launcher(path: Path) -> str:
        parts = path.relative_to(PACKAGE).parts
        return parts[1] if parts[0] == "launch" and parts[1] in ("slurm", "machines", "ray") else ""

    wrong = [
        f"{path} -> {target}"
        for path in modules().values()
        for target in imports_of(path)
        if launcher(path) and launcher(target) and launcher(path) != launcher(target)
    ]
    assert wrong == []


def test_architecture_page_names_every_package() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    for number, names in enumerate(LAYERS):
        assert f"| {number} | {', '.join(f'`{name}`' for name in names)} |" in page


def test_login_node_imports_without_heavy_packages() -> None:
    names = [name for name, path in modules().items() if package_of(path) not in TRAINING | {"__main__"}]
    script = "\n".join(
        [
            "import sys",
            f"for name in {sorted(HEAVY)!r}: sys.modules[name] = None",
            *(f"import {name}" for name in names),
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_node_agent_imports_only_standard_library() -> None:
    script = "import slurm_rl.node.agent, sys; print([m for m in ('pydantic', 'yaml', 'hydra') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {script}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_grpo_driver_imports_heavy_packages_late() -> None:
    """Their import time counts as bring-up; the workers import them in parallel."""
    late = ("vllm", "deepspeed", "transformers", "ray", "torch.distributed.tensor", "torch._dynamo")
    script = f"import slurm_rl.trainers.grpo.run_grpo, sys; print([m for m in {late!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


_PATH = re.compile(r"(?<![\w./<-])(?:[a-z_]+/)+[a-z_0-9]+\.py\b")
_OF_OTHERS = ("torch/", "v1/", "vllm/", "trainer/", "examples/data_preprocess/", "ray/")
"""Sources of libraries."""


def test_paths_in_docstrings_and_docs_exist() -> None:
    files = [str(path.relative_to(ROOT)) for path in (*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"))]
    files += [
        str(path.relative_to(ROOT))
        for name in ("benchmarks", "containers", "examples")
        for path in (ROOT / name).rglob("*.py")
    ]
    wrong = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in (*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"))
        for path in _PATH.findall(page.read_text())
        if not path.startswith(_OF_OTHERS) and not any(f"/{file}".endswith(f"/{path}") for file in files)
    ]
    assert wrong == []
