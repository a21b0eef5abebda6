from pathlib import Path

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.user_files.read import read_function
from slurm_rl.config.user_parts import FORMS, check_function, named_functions
from slurm_rl.errors import ConfigError

ADVANTAGE, REWARD = FORMS["algorithm.advantage"], FORMS["reward.function"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my.py"


def test_read_function_returns_keyword_only_defaults(file: Path) -> None:
    file.write_text("import no_such_module\ndef f(rewards, known, *, needs_group=True, per_token=False): ...\n")
    assert read_function(f"{file}:f", ADVANTAGE) == {"needs_group": True, "per_token": False}


@pytest.mark.parametrize(
    "parameters", ["r, k", "*both", "r, *rest", "r, k, more=1", "r, k, /", "rewards, known, *, per_token=True, **rest"]
)
def test_read_function_accepts_compatible_signatures(parameters: str, file: Path) -> None:
    file.write_text(f"def f({parameters}): ...\n")
    read_function("my.py:f", ADVANTAGE)


@pytest.mark.parametrize("parameters", ["", "r", "r, k, more", "r, k, *, more", "*, rewards, known"])
def test_read_function_refuses_other_signatures(parameters: str, file: Path) -> None:
    file.write_text(f"def f({parameters}): ...\n")
    with pytest.raises(ConfigError, match=r"is called as f\(rewards, known\); got def f\(.*my\.py\. Next: "):
        read_function("my.py:f", ADVANTAGE)


@pytest.mark.parametrize("flag", ["need_group=True", "needs_values=True", "per_token=1", "per_token=WANTED"])
def test_read_function_refuses_unknown_flags(flag: str, file: Path) -> None:
    file.write_text(f"WANTED = True\ndef f(r, k, *, {flag}): ...\n")
    with pytest.raises(
        ConfigError, match=rf"each True or False \(needs_group, per_token, per_turn\); got {flag.split('=')[0]}"
    ):
        read_function("my.py:f", ADVANTAGE)


def test_read_function_accepts_any_bound_name_for_rewards(file: Path) -> None:
    file.write_text(
        "from a import b as imported\nif True:\n    def inner(q, p, l): ...\nlater = inner\nraise SystemExit\n"
    )
    for name in ("imported", "inner", "later"):
        read_function(f"{file}:{name}", REWARD)
    with pytest.raises(ConfigError, match="must define reward at its top level; got imported, inner, later"):
        read_function(f"{file}:reward", REWARD)
    with pytest.raises(ConfigError, match="must define imported as a function of its own; got nothing"):
        read_function(f"{file}:imported", ADVANTAGE)


def test_read_function_refuses_unreadable_files(file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"algorithm\.advantage must name a file that can be read; got .*my\.py \(No su"
    ):
        read_function("my.py:f", ADVANTAGE)
    file.write_text("def f(:\n")
    with pytest.raises(ConfigError, match=r"did you mean my\.py"):
        read_function("mi.py:f", ADVANTAGE)
    with pytest.raises(ConfigError, match="must name a Python file"):
        read_function("my.py:f", ADVANTAGE)
    with pytest.raises(ConfigError, match="~name must be a user of this machine"):
        read_function("~nobody-of-this-name/my.py:f", ADVANTAGE)


def test_load_config_makes_user_files_absolute(file: Path) -> None:
    words = ["algorithm.advantage=my.py:a", "algorithm.loss=./my.py:l", "algorithm.filters.function=sub/my.py:f"]
    config = load_config(["+exp=demo", *words, "reward.function=my.py:r", "algorithm.kl.coef=0.1"])
    here = file.parent
    assert named_functions(config) == {
        "algorithm.advantage": f"{here}/my.py:a",
        "algorithm.loss": f"{here}/my.py:l",
        "algorithm.filters.function": f"{here}/sub/my.py:f",
        "reward.function": f"{here}/my.py:r",
    }
    assert config.algorithm.kl.coef == 0.1
    assert not config.algorithm.needs_values


def test_check_function_requires_group_for_needs_group(file: Path) -> None:
    file.write_text("def alone(r, k): ...\ndef compared(r, k, *, needs_group=True): ...\n")
    config = load_config(["+exp=demo", "algorithm.group_size=1", "algorithm.advantage=my.py:alone"])
    check_function(config, *next(iter(named_functions(config).items())))
    with pytest.raises(ConfigError, match=r"group_size must be >= 2 for advantage '.*compared'.*got 1\. Next: "):
        check_function(config, "algorithm.advantage", "my.py:compared")
