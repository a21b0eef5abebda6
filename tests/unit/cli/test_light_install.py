"""The login node: an installed wheel with its presets, no torch, no Ray, and quick."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = "torch ray vllm deepspeed transformers wandb numpy tensorboard accelerate datasets"
LIBRARIES = "import hydra, omegaconf, pydantic, yaml"
BLOCKER = f"""
import sys
for name in {HEAVY.split()!r}:
    sys.modules[name] = None
from slurm_rl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run_light(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A verb where the heavy packages cannot be imported, and the seconds of CPU it took."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = children_cpu()
    done = subprocess.run([sys.executable, "-c", BLOCKER, *words], cwd=folder, env=env, capture_output=True, text=True)
    return done, children_cpu() - before


def cpu_seconds(argv: list[str]) -> float:
    before = children_cpu()
    subprocess.run(argv, check=True)
    return children_cpu() - before


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "amd_mi300"),
        (["plan", "+exp=demo", "+cluster=amd_mi300"], "sbatch --job-name=addition"),
        (["plan", "--json", "+exp=demo", "+cluster=nvidia_h100"], '"gpus_per_node": 8'),
        (["--cfg", "job"], "object_store_gb"),
        (["explain", "+exp=demo", "+cluster=amd_mi300"], "memory, estimated in GB"),
        (["completion"], "_slurm_rl_verbs='prepare "),
        (["config", "optim", "+exp=demo"], "optim.lr=0.0006  (default 1e-06)"),
        (["here", "--print-template"], "#SBATCH --requeue"),
        (["status", "run"], "not submitted"),
        (["prepare", "--help"], "mathv60k"),
    ],
)
def test_light_verbs_are_light_and_quick(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("{}")
    done, seconds = run_light(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    # A busy machine makes even CPU seconds longer: then as many times what the libraries alone take beside it.
    if seconds >= 1:
        for _ in range(3):
            libraries, again = cpu_seconds([sys.executable, "-c", LIBRARIES]), run_light(tmp_path, *words)[1]
            if again < max(1, 4 * libraries):
                return
        pytest.fail(f"{again:.2f} s of CPU; the libraries alone {libraries:.2f} s")


def test_bad_words_exit_2_in_one_line(tmp_path: Path) -> None:
    for words in (["optim.lrr=1"], ["plan", "+cluster=nope"], ["frobnicate"], ["--frobnicate"], ["status", "nowhere"]):
        done, _ = run_light(tmp_path, *words)
        assert done.returncode == 2, words
        assert done.stderr.startswith("slurm_rl: ")
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("hatchling is neither installed nor to be had from an index")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("slurm_rl-*.whl"))


def test_the_wheel_ships_presets_and_templates(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [*(ROOT / "conf").rglob("*.yaml"), *(ROOT / "sbatch_templates").glob("*")]
    shipped += (ROOT / "containers").rglob("Containerfile")
    assert {"slurm_rl/py.typed", *(f"slurm_rl/{path.relative_to(ROOT)}" for path in shipped)} <= names
    assert not any(name.startswith("tests/") for name in names)


def test_the_installed_wheel_works_anywhere(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own; the dependencies are this one's."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    # Behind the wheel, so that a checkout installed there in editable mode does not stand in for it.
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
    assert "gpu:mi300:8" in call("plan", "+exp=demo", "+cluster=amd_mi300")
    assert "exec python -m slurm_rl here" in call("here", "--print-template")
    assert "Peak learning rate." in call("config", "optim"), "the strings under fields are read from the source"
    assert "complete -o nospace" in call("completion")
    build = ["image", "build", "container.runtime=pyxis", f"container.image={tmp_path}/rl.sqsh"]
    done = subprocess.run(
        [str(python), "-m", "slurm_rl", *build],
        cwd=tmp_path, env={**env, "PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    # It has its recipe at hand; what is missing is only who builds it.
    assert "an image is built by podman, docker or buildah" in done.stderr
