import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.user_files.load import copy_path
from slurm_rl.config.user_files.read import copy_files, find_neighbours
from slurm_rl.launch.controller.create import copy_functions, snapshot_code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """my.py imports near and package.inner; near imports deep; far is not imported."""
    mine = tmp_path / "mine"
    (mine / "package").mkdir(parents=True)
    (mine / "my.py").write_text(
        "import json, near, torch, slurm_rl.errors\nfrom package import inner\ndef f(r, k): ...\n"
    )
    (mine / "near.py").write_text("import deep\nraise SystemExit('this file was run')\n")
    (mine / "package" / "__init__.py").write_text("")
    (mine / "package" / "inner.py").write_text("")
    for name in ("deep", "far", "json"):
        (mine / f"{name}.py").write_text("")
    return mine


def test_find_neighbours_lists_imports_without_running_them(folder: Path) -> None:
    found = [path.relative_to(folder).as_posix() for path in find_neighbours(folder / "my.py")]
    assert found == ["deep.py", "near.py", "package/__init__.py", "package/inner.py"]


def test_copy_files_keeps_existing_copy(folder: Path, tmp_path: Path) -> None:
    code, file = tmp_path / "code", folder / "my.py"
    copy_files(code, [f"{file}:f"])
    before = file.read_text()
    file.write_text("changed")
    copy_files(code, [f"{file}:f"])
    assert copy_path(code, file).read_text() == before


def test_copy_files_separates_files_of_one_name(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "my.py"
    other.write_text("other = 1\n")
    copy_files(tmp_path / "code", [f"{folder}/my.py:f", f"{other}:f"])
    assert copy_path(tmp_path / "code", other).read_text() == "other = 1\n"
    assert "near" in copy_path(tmp_path / "code", folder / "my.py").read_text()


def test_run_imports_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and its imports are deleted after submission."""
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.mkdir()
    run.mkdir(mode=0o755)
    monkeypatch.chdir(mine)
    (mine / "my.py").write_text("from near import NUMBER\ndef f(r, k): return NUMBER\n")
    (mine / "near.py").write_text("NUMBER = 7\n")
    config = load_config(["+exp=demo", "algorithm.advantage=my.py:f"])
    snapshot_code(run / "code")
    copy_functions(run / "code", [config])
    shutil.rmtree(mine)
    script = (
        "import sys; from slurm_rl.config.user_files.load import load_function as load; import json;"
        "f = load(sys.argv[1]); print(json.dumps([f(0, 0), f.__code__.co_filename, load(sys.argv[1]) is f]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, config.algorithm.advantage],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(run / "code"), "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [7, str(copy_path(run / "code", mine / "my.py")), True]
    open_to_others = [path for path in (run / "code").rglob("*") if path.stat().st_mode & 0o022]
    assert open_to_others == []
