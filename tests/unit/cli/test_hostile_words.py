import contextlib
import io
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_rl.__main__ import main
from slurm_rl.cli.parser import load_verbs
from slurm_rl.config.keys import list_keys

VERBS = load_verbs().by_name
# Deterministic examples; set `derandomize` to False to search for new ones.
KEPT = settings(
    derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25
)
GROUPS = ["cluster", "data", "model", "exp", "reward", "lora", "algorithm", "network", "hydra", "hydra/launcher"]
KEYS = st.sampled_from(
    [*GROUPS, *list_keys(), "", ".", "a..b", "_target_", "defaults", "hydra.run.dir", "hydra.mode", "model@:x", "日本"]
)
VALUES = st.sampled_from(
    [
        *("", "9" * 30, "9" * 5000, "x" * 5000, "a\x01b"),
        *("5", "-1", "null", "true", "nan", "1e400", "99:99:99", "日本"),
        *("[", "{", "'", '"', "\\", "[]", "{}", "[1]", "[a, b]", "[[1]]", "{a: 1}", "{1: {}}", "'a\nb'", "1,2", "'%s'"),
        *("${name}", "${optim}", "${missing}", "${", "${oc.env:NOT_SET}", "${oc.env:HOME}", "glob(*)", "int(x)"),
        *("'~nobody-of-this-name/x'", "/nowhere", "/etc/passwd", "../..", "a://b", "http://[", "file:///"),
    ]
)
OVERRIDES = st.builds("{}{}={}".format, st.sampled_from(["", "", "+", "++", "~"]), KEYS, VALUES)
TEXT = st.text(st.characters(), max_size=12)  # includes lone surrogates and control characters
SHORT = st.sampled_from(
    ["", "=", "+", "~", "=5", "++x=1", "-", "--", "-5", "--x", "plan", "plan=", ".", "/", "~nobody/x"]
)
FLAGS = st.builds(
    "{}{}".format,
    st.sampled_from(
        sorted({name for row in VERBS.values() for flag in row.list_flags() for name in flag.option_strings} - {"-f"})
    ),
    st.sampled_from(["", "=", "=5", "=-1", "=nan", "=x", "=/nowhere", "=" + "9" * 5000, "=日本", "=job"]),
)
WORDS = st.lists(OVERRIDES | TEXT | SHORT | FLAGS, min_size=1, max_size=4)
# An override that fails composition, so that no run, build or server starts.
STOP = "no.such.key=1"


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty working directory, and re-raise unexpected exceptions instead of reporting them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_RL_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)

    def raise_it(error: Exception) -> NoReturn:
        raise error

    monkeypatch.setattr("slurm_rl.cli.output.keep_traceback", raise_it)
    return tmp_path


def check_ends_well(words: list[str]) -> None:
    # A file, because `cancel` writes from a child process.
    with TemporaryFile("w+") as told, contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
        told.seek(0)
        text = told.read()
    assert code in (0, 1, 2), words
    assert code == 0 or text.startswith("slurm_rl: "), words


@KEPT
@given(st.lists(OVERRIDES, min_size=1, max_size=2) | WORDS)
@example(["=5"])
@example(["model=null"])
@example(["data=5"])
@example(["seed=1" + "0" * 5000])
@example(["cluster.run_root=" + "x" * 300])
@example(["++rollout.replay=" + "x" * 5000])
@example(["model=hf", "model.path='~nobody-of-this-name/x'"])
@example(["data.train='~nobody-of-this-name/x'"])
@example(["seed=1", "seed=2", "seed=3"])
@example(["--config-dir='~nobody-of-this-name'"])
def test_plan_ends_well(nowhere: Path, words: list[str]) -> None:
    check_ends_well(["plan", *words])
    assert not list(nowhere.iterdir()), "plan leaves nothing"


@KEPT
@given(st.sampled_from(sorted(VERBS.keys() - {"plan", "prepare"})), WORDS)
@example("status", ["x" * 5000])
@example("resume", ["/root/" + "x" * 300])
@example("logs", ["a\0b"])
@example("convert", ["--out=" + "x" * 5000])
def test_verbs_refuse_hostile_words(nowhere: Path, verb: str, words: list[str]) -> None:
    check_ends_well([verb, *words[:2], STOP, *words[2:]])


@KEPT
@given(WORDS)
def test_prepare_ends_well(nowhere: Path, words: list[str]) -> None:
    check_ends_well(["prepare", "no-such-data", *words])


@pytest.mark.parametrize("words", [["=5"], ["model=5"], ["name=${missing}"], ["statsu"], ["a=["]])
def test_showing_config_ends_well(nowhere: Path, words: list[str]) -> None:
    check_ends_well(["--cfg", "job", *words])
    check_ends_well([*words, "-m"])
