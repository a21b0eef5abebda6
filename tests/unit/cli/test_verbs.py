import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_rl import __version__
from slurm_rl.__main__ import main
from slurm_rl.cli import foreground
from slurm_rl.cli.parser import load_verbs, parse
from slurm_rl.config.load import load_config
from slurm_rl.config.overrides import DEMO
from slurm_rl.config.user_files.load import load_function
from slurm_rl.plan.job import PLAN_VERSION
from slurm_rl.run_dir.run_dir import RunDir

VERBS = load_verbs().by_name
ROOT = Path(__file__).parents[3]
TAKE_OVERRIDES = [verb for verb, row in VERBS.items() if "overrides" in row.arguments]


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_answer_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "some-run", "--help"]) == 0
    shown = capsys.readouterr()
    assert main([verb, "some-run", "-h"]) == 0
    assert capsys.readouterr() == shown
    assert shown.err == "" and shown.out.startswith(f"usage: python -m slurm_rl {verb} ")
    row = VERBS[verb]
    assert f"python -m slurm_rl {row.example}\n" in shown.out
    for flag in row.list_flags():
        assert flag.help and [name for name in flag.option_strings if name not in shown.out] == []
    assert callable(load_function(row.get_default("run")))


def test_help_and_version_without_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slurm_rl {__version__}\n"


def test_verb_table_needs_only_standard_library() -> None:
    script = "import sys; from slurm_rl.cli.parser import load_verbs; load_verbs(); "
    script += "print([name for name in ('pydantic', 'yaml', 'hydra') if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-S", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_after_dashes_belongs_to_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attach", str(tmp_path), "--", "ls", "--help"]) == 2
    assert "must contain plan.json" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_examples_of_verbs_parse(verb: str) -> None:
    first, *words = shlex.split(VERBS[verb].example.partition(" >")[0])
    assert first == verb
    args = parse(verb, words)
    if verb in TAKE_OVERRIDES:
        overrides = args.rest[1 if verb in ("image", "config") else 0 :]
        overrides = [*overrides, *(["eval.only=true"] if verb == "eval" else [])]
        load_config(overrides or DEMO, is_run=verb not in ("image", "doctor", "config"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--jsno"], "did you mean --json?"),
        (["plan", "-m", "seed=1,2"], "-m is of submit"),
        (["logs", "--json"], "--json is of eval and plan and config and status and report"),
        (["logs", "--wo=driver"], "did you mean --who?"),
        (["plan", "--config-dir"], "--config-dir: expected one argument"),
        (["attach", "--dashboard", "--port=0"], "from 1 to 65535; got 0"),
        (["status", "--min", "--max"], "not allowed with argument"),
        (["cancel", "--", "now"], "takes no command after --"),
        (["--cluster=slurm_cpu"], "write +cluster=slurm_cpu, without dashes"),
        (["plan", "+exp=dmo"], "exp has no preset of this name; got dmo"),
        (["plan", "+exp=demo", "cluster.slurm.time=1"], "set job.time_limit"),
        (["statsu"], "did you mean status?"),
        (["trainer.num_steps=1", "plan"], "it comes first: python -m slurm_rl plan"),
        (["plan", "plan"], "only one verb per command"),
        (["status", "logs"], "only one verb per command"),
        (["logs", ""], "a path must not be empty"),
        (["logs", "seed=1"], "and no overrides"),
        (["logs", "a", "b"], "name one run directory"),
        (
            ["resume", "a", "seed=5"],
            "leave out seed=5: a run keeps its settings (`resume` changes only",
        ),
        (["resume", "a", "job.time_limit=5", "job.time_limit=6"], "can be given once, for a single run"),
        (["plan", "+exp=demo", "+cluster=quite_other"], "conf of the current folder, or below --config-dir"),
        (["image", "bild"], "did you mean build?"),
        (["image"], "one of build, import; got none"),
        (["plan", "--as=dstak"], "invalid choice: 'dstak'"),
        (["--dir", "x"], "is for a pipeline file"),
        (["prepare"], "got none"),
        (["plan", "name=\udcff"], "must be UTF-8"),
        (["status", "a\0b"], "NUL characters"),
    ],
)
def test_wrong_words_name_right_ones(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("slurm_rl: ") and said in shown.err and shown.out == ""


def lines_without_the_needed_flag() -> list[list[str]]:
    """Return one command line for each flag that requires another one, without that one."""
    return [
        [verb, flag.option_strings[-1], *([] if flag.nargs == 0 else [str([*(flag.choices or ["17"])][-1])])]
        for verb, row in VERBS.items()
        for flag in row.list_flags()
        if flag.option_strings[-1] in row.needs
    ]


@pytest.mark.parametrize("words", lines_without_the_needed_flag(), ids=" ".join)
def test_flag_without_its_requirement_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"{words[1]} needs --" in capsys.readouterr().err.replace("needs -m", "needs --")


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"version": PLAN_VERSION}))
    return folder


def test_word_that_is_not_run_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "runs" / "math-1")
    sweep = make_run(tmp_path / "sweep" / "0").parent
    (sweep / "sweep.json").write_text("{}")
    for verb, word, said in (
        ("logs", tmp_path / "runs" / "mth-1", f"did you mean {run}?"),
        ("logs", tmp_path / "runs", f"as in {run}"),
        ("logs", sweep, f"as in {sweep}/0"),
        ("logs", tmp_path / "nothing", "no directory, run name or job id"),
        ("resume", run, "must be readable"),
        ("attach", run, "must be readable"),
        ("submit", run, f"python -m slurm_rl status {run}"),
    ):
        assert main([verb, str(word)]) == 2, verb
        assert said in capsys.readouterr().err, verb


def test_os_error_is_one_sentence_and_other_error_writes_traceback_to_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = [ZeroDivisionError("of the test"), OSError(13, "Permission denied", "/shared/run")]

    def fail(words: list[str]) -> int:
        raise errors.pop()

    monkeypatch.setattr("slurm_rl.plugins.report.command.find_target", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["report"]) == 1
    assert capsys.readouterr().err == "slurm_rl: this machine refuses: Permission denied; got /shared/run\n"
    assert main(["report"]) == 1
    [kept] = tmp_path.iterdir()
    told = capsys.readouterr().err
    assert str(kept) in told and "ZeroDivisionError: of the test" in told and "Traceback" not in told
    assert "in fail" in kept.read_text() and kept.stat().st_mode & 0o777 == 0o600


def test_config_shows_presets_of_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_text("num_nodes: 3\n")
    monkeypatch.setenv("SLURM_RL_CONFIG_DIR", str(tmp_path))
    assert main(["--cfg", "job", "--package", "cluster", "+cluster=ours"]) == 0
    assert "\nnum_nodes: 3\n" in capsys.readouterr().out


def test_end_without_message_shows_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foreground, "_read_or_write_summary", lambda run: {})
    assert foreground._finish(RunDir(tmp_path), ["first", *"1234", "MemoryError"]) == 1
    assert "ended without a message" in (text := capfd.readouterr().err)
    assert "MemoryError" in text and "first" not in text
