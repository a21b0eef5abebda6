"""A probe that hangs, dies or prints is named and stands in nobody's way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_rl.functions.load import load_function
from slurm_rl.plugins.health.doctor.finding import Finding, Question, save_question
from slurm_rl.plugins.health.doctor.probes import PROBES, Probe, run_probes
from tests.unit.plugins.health.doctor.kit import question

THIS = "tests.unit.plugins.health.doctor.test_probes"


def hang(_: Question) -> Iterator[Finding]:
    yield Finding("first", "ok", "before it hangs")
    if os.fork() == 0:  # what it started goes with it
        Path(os.environ["SRL_TEST_PID"]).write_text(str(os.getpid()))
        time.sleep(3600)
    time.sleep(3600)


def die(_: Question) -> list[Finding]:
    print("the last word", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def be_loud(_: Question) -> list[Finding]:
    print('{"not": "a finding"}')
    os.system("echo '{}'")
    return [Finding("loud", "ok", "é")]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **looks: Probe) -> list[Finding]:
    """With the rows that the processes of the probes will find, too."""
    asked = question(folder)
    save_question(asked)
    monkeypatch.setenv("SRL_TEST_PID", str(folder / "pid"))
    monkeypatch.setattr("slurm_rl.plugins.health.doctor.probes.PROBES", looks)
    (folder / "sitecustomize.py").write_text(
        f"from slurm_rl.plugins.health.doctor import probes\nprobes.PROBES |= {{name: probes.Probe(look, 1) "
        f"for name, look in { ({name: probe.look for name, probe in looks.items()})!r}.items()}}\n"
    )
    paths = [str(folder), str(Path(__file__).parents[5]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return run_probes(asked, looks)


def test_one_that_hangs_is_ended_with_all_it_started_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(tmp_path, monkeypatch, slow=Probe(f"{THIS}:hang", 6), loud=Probe(f"{THIS}:be_loud", 600))
    assert [(one.what, one.state) for one in found] == [("first", "ok"), ("slow", "wrong"), ("loud", "ok")]
    assert found[1].should == "an answer within 6 s"
    child = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_dies_is_named_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [found] = run(tmp_path, monkeypatch, broken=Probe(f"{THIS}:die", 600))
    assert (found.what, found.state) == ("broken", "wrong")
    assert "SIGSEGV" in found.seen and "the last word" in found.seen


@pytest.mark.parametrize("name", PROBES)
def test_every_row_has_its_function(name: str) -> None:
    assert callable(load_function(PROBES[name].look))
