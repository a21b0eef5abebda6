"""`init` writes a project folder, whose presets every verb finds without a flag."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli.sweep import Composer
from slurm_rl.config.load import load_config, open_hydra
from slurm_rl.config.overrides import normalise_words
from slurm_rl.config.preset_folders import conf_dir, own_dir, project_dir, site_dirs
from slurm_rl.plugins.project.command import name_project
from slurm_rl.plugins.project.files import build_files
from tests.lock import ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a folder whose name has characters of Hydra's grammar; the current folder."""
    folder = tmp_path / "it's, [mine]"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SLURM_RL_CONFIG_DIR", raising=False)
    assert main(["init", str(folder), "--name", "my-project"]) == 0
    monkeypatch.chdir(folder)
    return folder


def test_project_plans_as_written(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert found == set(build_files("my-project")) and len((project / "README.md").read_text().splitlines()) <= 12
    for name, model in (("my-project_tiny", "tiny_qwen3"), ("my-project", "Qwen2.5-1.5B")):
        assert main(["plan", f"+exp={name}"]) == 0
        printed = capsys.readouterr().out
        assert all(text in printed for text in (model, "reward.py:score", "held out: 100 rows"))
    assert main(["--help"]) == 0 and "my-project" in capsys.readouterr().out
    with open_hydra(None) as extra:  # as a sweep composes its runs
        tree = Composer(extra).compose_config(normalise_words(["+exp=my-project", "optim.lr=1e-4"]))
    assert (tree.reward.function, tree.optim.lr) == ("reward.py:score", 1e-4)


def test_reward_of_project_counts_right_characters(project: Path) -> None:
    script = "from reward import score; print(score(['4719=9274'], ['4719='], ['9174']))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out == "{'rewards': 0.75, 'scores': 0.0}\n"


def test_init_overwrites_no_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "reward.py").write_text("mine")
    for path in build_files("my-project").keys() - {"reward.py"}:
        (project / path).unlink()
    assert main(["init", ".", "--name", "my-project"]) == 2
    assert "overwrites no file; got reward.py in /" in capsys.readouterr().err
    assert [path.name for path in project.rglob("*") if path.is_file()] == ["reward.py"]
    assert (project / "reward.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "takes one folder; got none. Next: python -m slurm_rl init my-project"),
        (["a", "b"], "takes one folder; got a b"),
        (["a", "--name", "../x"], "letters, digits, _ and -; got '../x'"),
        (["demo"], "the name of a built-in one; got demo"),
        ([str(ROOT), "--name", "x"], "a checkout of slurm_rl"),
        (["README.md/x"], "the project folder must be writable"),
    ],
)
def test_init_refuses_bad_input(
    words: list[str], error: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *words]) == 2
    assert error in capsys.readouterr().err
    assert not (project / "a").exists()


def test_experiment_is_named_after_folder() -> None:
    names = {name: name_project(Path("/x", name)) for name in ("my-project", "my project!", "Größe", "...")}
    assert names == {"my-project": "my-project", "my project!": "my_project", "Größe": "Gr_e", "...": "mine"}


def test_conf_comes_after_named_folders(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, folder in enumerate(("flag", "variable", "conf", own_dir())):
        (project / folder / "cluster").mkdir(parents=True, exist_ok=True)
        text = f"# @package _global_\ncluster:\n  head_port: {5000 + number}\n"
        (project / folder / "cluster/mysite.yaml").write_text(text)

    def port(config_dir: str | None) -> int | None:
        return load_config(["+exp=my-project", "+cluster=mysite"], config_dir=config_dir).cluster.head_port

    assert port(None) == 5002
    monkeypatch.setenv("SLURM_RL_CONFIG_DIR", "variable")
    assert (port("flag"), port(None)) == (5000, 5001)
    assert [folder.name for folder in site_dirs("flag")] == ["flag", "variable", "conf", "slurm_rl"]


def test_conf_of_checkout_or_stranger_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert project_dir() is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf/nginx").mkdir(parents=True)
    assert project_dir() is None
    (tmp_path / "conf/exp").mkdir()
    assert project_dir() == tmp_path / "conf"
    shutil.rmtree(tmp_path / "conf")
    shutil.copytree(conf_dir(), tmp_path / "conf")
    assert project_dir() is None


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("exp/mine", "modle:\n  path: x\n", "lacks the line `# @package _global_`; got {file}, which sets modle"),
        ("exp/mine", "# @package _global_\nmodle: {}\n", "got modle. Next: did you mean model?"),
        ("exp/mine", "# @package _global_\ndefaults: [my-projct, _self_]\n", "got my-projct in the preset exp/mine"),
        ("exp/mine", "# @package _global_\ndefaults: [/modl/hf]\n", "no config group of this name; got modl. Next: d"),
        ("exp/mime", "# @package _global_\n", "got mine; there are"),
        ("exp/demo", "# @package _global_\n", "a built-in one, which wins; got {file}. Next: rename the file"),
    ],
)
def test_mistake_in_own_preset_is_named(
    file: str, text: str, error: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / f"conf/{file}.yaml"
    path.write_text(text)
    words = ["plan", f"+exp={'demo' if file == 'exp/demo' else 'mine'}"]
    assert main(words) == 2
    error = error.format(file=path)
    assert error in capsys.readouterr().err
