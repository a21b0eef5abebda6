"""Run `site` with fake Slurm programs."""

import os
import shlex
from pathlib import Path

import pytest
import yaml

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import own_dir
from slurm_rl.plugins.site import command as verb
from tests.small_disk import small_disk
from tests.storage.disks import fill
from tests.unit.cli.test_light_install import run_light
from tests.unit.plugins.site.samples import H100_SINFO, SETTINGS

FEW = "%P|%l|%D|%c|%m|%G"


class LoginNode:
    """A folder of fake programs that replaces PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.home = folder / "bin", folder / "home"
        self.bin.mkdir()
        self.home.mkdir()
        rows = [line.split("|") for line in H100_SINFO.splitlines()]
        admission = "\n".join("|".join([row[0], *row[2:7]]) for row in rows)
        self.answer("sinfo", [("*--version*", "slurm 23.11.11"), (f"*{FEW}", admission), ("*", H100_SINFO)])
        self.answer("scontrol", [("*config*", SETTINGS)])
        self.answer("sacctmgr", [])
        self.answer("srun", [("--help", "usage: srun")])
        self.answer("sbatch", [("*", "")])

    def answer(
        self, program: str, cases: list[tuple[str, str]], refused: str = "accounting storage is disabled"
    ) -> None:
        """Answer arguments that match a shell pattern; refuse others with this text."""
        lines = ["#!/bin/sh", 'case "$*" in']
        lines += [f"{_pattern(pattern)}) printf '%s\\n' {shlex.quote(text)};;" for pattern, text in cases]
        lines += [f"*) echo {shlex.quote(f'{program}: error: {refused}')} >&2; exit 1;;", "esac"]
        (self.bin / program).write_text("\n".join(lines) + "\n")
        (self.bin / program).chmod(0o755)

    @property
    def preset(self) -> Path:
        return self.home / ".config" / "slurm_rl" / "cluster" / "mysite.yaml"


def _pattern(text: str) -> str:
    return "*".join(shlex.quote(part) if part else "" for part in text.split("*"))


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoginNode:
    node = LoginNode(tmp_path)
    for name in (name for name in os.environ if name.startswith(("SBATCH_", "SLURM_", "XDG_CONFIG"))):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{node.bin}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(node.home))
    monkeypatch.chdir(tmp_path)
    return node


def test_preset_is_found_by_name_and_matches_slurm(login: LoginNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "--name", "mysite"]) == 0
    told = capsys.readouterr().out
    assert f"wrote   {login.preset}" in told
    assert "next    python -m slurm_rl doctor +cluster=mysite\n" in told
    assert "`sbatch --test-only` took a job of it" in login.preset.read_text()
    config = load_config(["+exp=demo", "+cluster=mysite"], is_run=True)
    assert (config.cluster.gpu_type, config.cluster.slurm.partition) == ("H100", "long")
    assert login.preset.parent.parent == own_dir()


def test_preset_goes_into_project_folder(login: LoginNode, tmp_path: Path) -> None:
    (tmp_path / "conf/cluster").mkdir(parents=True)
    assert main(["site", "--name", "mysite"]) == 0
    assert [path.name for path in tmp_path.glob("conf/cluster/*")] == ["mysite.yaml"] and not login.preset.exists()
    assert load_config(["+exp=demo", "+cluster=mysite"]).cluster.gpu_type == "H100"


def test_default_name_is_cluster_name(login: LoginNode, tmp_path: Path) -> None:
    """In an install without heavy packages."""
    done = run_light(tmp_path, "site")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in login.preset.parent.iterdir()] == ["alpha.yaml"]
    assert [verb.name_of(said) for said in ("alpha", "my cluster!", "", "local", "--")] == [
        *("alpha", "my_cluster", "mysite", "local_site", "mysite")
    ]


def test_preset_is_overwritten_only_with_force(login: LoginNode, capsys: pytest.CaptureFixture[str]) -> None:
    login.preset.parent.mkdir(parents=True)
    login.preset.write_text("mine: 1\n")
    assert main(["site", "--name", "mysite"]) == 2
    assert "an existing preset is not overwritten" in capsys.readouterr().err
    assert login.preset.read_text() == "mine: 1\n"
    assert main(["site", "--name", "mysite", "--force"]) == 0
    assert yaml.safe_load(login.preset.read_text())["cluster"]["launcher"] == "slurm"
    assert len(list(login.preset.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "../x"], "letters, digits"),
        (["--name", "nvidia_h100"], "the name of a built-in one"),
        (["--name", "mysite", "--partition", "nope"], "partition must be one of long"),
        (["+cluster=mysite"], "takes only flags"),
    ],
)
def test_invalid_arguments_are_refused(
    login: LoginNode, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", *words]) == 2
    assert said in capsys.readouterr().err
    assert not login.preset.parent.exists()


def test_chosen_partition_is_kept_with_refusal(login: LoginNode, capsys: pytest.CaptureFixture[str]) -> None:
    login.answer("sbatch", [], "Invalid account or account/partition combination specified")
    assert main(["site", "--name", "mysite", "--partition", "debug"]) == 1
    assert yaml.safe_load(login.preset.read_text())["cluster"]["slurm"]["partition"] == "debug"
    assert "# REFUSED by `sbatch --test-only`" in login.preset.read_text()
    assert "correct the file" in capsys.readouterr().out


def test_unreachable_controller_leaves_preset_untested(login: LoginNode) -> None:
    login.answer("sbatch", [], "Unable to contact slurm controller (connect failure)")
    assert main(["site", "--name", "mysite"]) == 1
    text = login.preset.read_text()
    assert "# NOT CHECKED by `sbatch --test-only`" in text
    assert yaml.safe_load(text)["cluster"]["slurm"]["partition"] == "long"


def test_machine_without_slurm_or_writable_folder_is_refused(
    login: LoginNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(login.home))
    assert main(["site", "--name", "mysite"]) == 2
    assert "sinfo must be on PATH" in capsys.readouterr().err
    assert list(login.home.iterdir()) == []
    monkeypatch.setenv("PATH", f"{login.bin}:/usr/bin:/bin")
    (login.home / ".config").write_text("a file")
    assert main(["site", "--name", "mysite"]) == 2
    assert "the folder for presets must be writable" in capsys.readouterr().err


def test_unlisted_folder_is_named_in_next_command(
    login: LoginNode, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "our presets"
    assert main(["site", "--name", "mysite", "--config-dir", str(folder)]) == 0
    assert f"doctor +cluster=mysite --config-dir '{folder}'" in capsys.readouterr().out
    monkeypatch.setenv("SLURM_RL_CONFIG_DIR", str(folder))
    assert main(["site", "--name", "other"]) == 0
    assert "doctor +cluster=other\n" in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "cluster").iterdir()) == ["mysite.yaml", "other.yaml"]


def test_full_disk_is_named(login: LoginNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(tmp_path, size_kb=64) as disk:
        fill(disk)
        assert main(["site", "--name", "mysite", "--config-dir", str(disk)]) == 2
        assert list(disk.glob("cluster/*")) == []
    told = capsys.readouterr().err
    assert "No space left on device" in told and "make room there" in told and "Traceback" not in told
