from pathlib import Path

import pytest

from slurm_rl.trainers.supervised.__main__ import main


@pytest.mark.parametrize(
    ("env", "message"), [({"RANK": "0"}, "no LOCAL_RANK, WORLD_SIZE"), ({}, "RunDirError")], ids=["rank", "run"]
)
def test_main_without_all_variables_or_run_ends_with_status_2(
    env: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path / "run"), "--attempt", "1"])
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main() == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
