from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli.output import to_printable
from slurm_rl.run_dir.run_dir import RunDir, write_json
from tests.plans import demo_plan

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202etxt.exe\x00"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    write_json(run.plan, demo_plan(run).to_json())
    write_json(run.job, {"launcher": "local", "job_id": f"1{EVIL}"})
    write_json(run.end, {"state": f"failed{EVIL}", "exit_code": 1, "cause": EVIL, "step": -1})
    logs = run.attempt(1).logs
    logs.mkdir(parents=True)
    run.point_latest_at(1)
    (logs / "driver.log").write_text(f"\x1b[31mred\x1b[0m {EVIL}\n 10%\r 20%\r\n\tdone, \u00fcber\n")
    return run


@pytest.mark.parametrize("words", [["status"], ["logs"], ["logs", "-f"], ["logs", "--who", "x"]])
def test_control_characters_are_removed(run: RunDir, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    main([words[0], *words[1:], str(run.path)])
    said = "".join(capfd.readouterr())
    assert "\\x1b]0;title\\x07" in said
    assert not set(said) & set("\x1b\x07\x9b\u202e\x00\r")


def test_harmless_characters_are_kept(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    main(["logs", str(run.path)])
    assert capfd.readouterr().out.endswith("\n 10%\n 20%\n\tdone, \u00fcber\n")
    assert to_printable("\u4f60\u597d \U0001f600 e\u0301\n") == "\u4f60\u597d \U0001f600 e\u0301\n"
