from pathlib import Path

import pytest
from omegaconf import OmegaConf

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.config.overrides import names_a_secret
from slurm_rl.errors import ConfigError
from slurm_rl.plan.task import _BUCKET_NAMES, SECRET_NAMES


@pytest.mark.parametrize(
    "name",
    [
        *SECRET_NAMES,
        *(name for name in _BUCKET_NAMES if not name.endswith("_URL")),
        *("RAY_AUTH_TOKEN", "SLURM_RL_TOKEN", "SLURM_RL_REWARD_TOKEN", "OPENAI_API_KEY", "GITHUB_PAT", "PGPASSWORD"),
    ],
)
def test_secret_in_preset_is_refused_without_its_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "hunter2")
    (tmp_path / "site" / "cluster").mkdir(parents=True)
    preset = f"# @package cluster\nenv:\n  OTHER: x-${{oc.env:{name}}}\n"
    (tmp_path / "site" / "cluster" / "ours.yaml").write_text(preset)
    assert main(["+cluster=ours", "--config-dir", "site", "run_dir=run"]) == 2
    error = capsys.readouterr().err
    assert f"${{oc.env:{name}}}" in error and "passed on by name" in error and "hunter2" not in error
    assert not Path("run").exists()
    with pytest.raises(ConfigError, match="must not contain secrets"):
        load_config([f"name='${{oc.env:{name},none}}'"])


def test_other_variables_are_read_in_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/alice")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    assert (
        load_config(["+exp=demo", "cluster.run_root='${oc.env:SCRATCH}/runs'"]).cluster.run_root
        == "/scratch/alice/runs"
    )
    assert load_config(["+exp=demo", "cluster.run_root='${oc.env:NOT_SET,/x}'"]).cluster.run_root == "/x"
    assert OmegaConf.create({"a": "${oc.env:MY_TOKEN}"}).a == "hunter2"
    assert not any(map(names_a_secret, ["HOME", "USER", "PWD", "OLDPWD", "PATH", "SLURM_JOB_ID", "MONKEY", "TMPDIR"]))
