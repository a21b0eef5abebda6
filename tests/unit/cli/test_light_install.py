import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = "torch ray vllm deepspeed transformers wandb numpy tensorboard accelerate datasets"
BLOCKER = f"""
import sys
for name in {HEAVY.split()!r}:
    sys.modules[name] = None
from slurm_rl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
COUNTED = """
import cProfile, pathlib, sys
profile = cProfile.Profile(builtins=False)
try:
    profile.runcall(exec, sys.argv.pop(1), {"__name__": "__main__"})
finally:
    calls = sum(entry.callcount for entry in profile.getstats())
    pathlib.Path("calls").write_text(str(calls))
"""
"""Counts Python function calls of a program, which do not depend on machine load."""


def run_light(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb with heavy packages blocked."""
    return run_counted(folder, BLOCKER, *words)


def run_counted(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", COUNTED, program, *words]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def libraries_calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Return the calls that importing the common libraries takes."""
    folder = tmp_path_factory.mktemp("libraries")
    assert run_counted(folder, "import hydra, omegaconf, pydantic, yaml").returncode == 0
    return int((folder / "calls").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "amd_mi300"),
        (["plan", "--json", "+exp=demo", "+cluster=nvidia_h100"], '"gpus_per_node": 8'),
        (["--cfg", "job"], "object_store_gb"),
        (["config", "optim", "+exp=demo"], "optim.lr=0.0006  (default 1e-06)"),
        (["run-in-job", "--print-template"], "#SBATCH --requeue"),
        (["status", "run"], "not submitted"),
        (["report", "run"], "run: unknown"),
        (["prepare", "--help"], "mathv60k"),
    ],
)
def test_light_verbs_import_no_heavy_module(words: list[str], said: str, tmp_path: Path, libraries_calls: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("{}")
    done = run_light(tmp_path, *words)
    # Where Slurm is installed without a cluster, it has more to say than that it is missing.
    assert (done.returncode, done.stderr.count("\n")) == (0, words[0] == "plan") and "Traceback" not in done.stderr
    assert said in done.stdout
    # Measured: 0.2 times (prepare --help) to 6.7 times (--cfg job).
    assert int((tmp_path / "calls").read_text()) < 10 * libraries_calls


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling is neither installed nor to be had from an index")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("slurm_rl-*.whl"))


def test_wheel_ships_presets_and_templates(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sbatch_templates").glob("*")]
    shipped += (ROOT / "containers").rglob("Containerfile")
    assert {"slurm_rl/py.typed", *(f"slurm_rl/{path.relative_to(ROOT)}" for path in shipped)} <= names
    assert not any(name.startswith("tests/") for name in names)


def test_installed_wheel_works_anywhere(wheel: Path, tmp_path: Path) -> None:
    """Use a new environment with this one's dependencies."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    pip = [sys.executable, "-m", "pip", f"--python={tmp_path}/venv/bin/python", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    # After the wheel, so that an editable checkout does not replace it.
    (site / "libraries.pth").write_text(libraries + "\n")
    python = tmp_path / "venv" / "bin" / "python"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def call(*words: str) -> str:
        argv = [str(python), "-m", "slurm_rl", *words]
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    where = subprocess.run(
        [str(python), "-c", "import slurm_rl; print(slurm_rl.__file__)"],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    script = [str(tmp_path / "venv/bin/slurm-rl"), "--version"]
    assert subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True).stdout == call("--version")
    assert "gpu:mi300:8" in call("plan", "--full", "+exp=demo", "+cluster=amd_mi300")
    assert "exec python -m slurm_rl run-in-job" in call("run-in-job", "--print-template")
    assert "Peak learning rate." in call("config", "optim"), "the strings under fields are read from the source"
    build = ["image", "build", "container.runtime=pyxis", f"container.image={tmp_path}/rl.sqsh"]
    done = subprocess.run(
        [str(python), "-m", "slurm_rl", *build],
        cwd=tmp_path, env={**env, "PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    # The wheel contains the recipe; only the builder is missing.
    assert "building an image needs podman or docker" in done.stderr


def find_pythons() -> dict[str, str]:
    """Return version -> program of the supported Python versions on this machine, also pyenv's."""
    found = {}
    for version in ("3.11", "3.12", "3.13"):
        names = [f"python{version}", *map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))]
        for name in names:
            # A shim of pyenv exists for versions that are not selected.
            if (
                shutil.which(name)
                and subprocess.run([name, "-c", "import ensurepip"], capture_output=True).returncode == 0
            ):
                found[version] = name
    return found


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_installs_with_supported_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """Into an empty environment, with the dependencies from pip's index."""
    python = find_pythons().get(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([str(tmp_path / "venv/bin/pip"), "install", "--quiet", str(wheel)], check=True)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for words, text in (("--version", "slurm_rl"), ("init my-project", "wrote"), ("plan +exp=demo", "launcher")):
        argv = [str(tmp_path / "venv/bin/slurm-rl"), *words.split()]
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and text in done.stdout, (argv, done)
