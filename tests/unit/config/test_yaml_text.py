import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.yaml_text import parse_yaml
from slurm_rl.errors import ConfigError

PACKAGE = "# @package _global_\n"
TEXTS = [
    *("24:00:00", "4:30", "1:30.5", "0123", "0o17", "0x1F", "1_000", "2025_11_26", "+5", "no", "on", "Yes"),
    *("y", "=", "1_0.5", "2025-01-01", "1-00:00:00", "12e", "1.2.3", "0b11", "-0", "00", "190:20:30"),
]  # fmt: skip


def write(folder: Path, text: str | bytes, name: str = "mine", group: str = "cluster") -> Path:
    file = folder / group / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("text", TEXTS)
def test_parse_yaml_keeps_spelling_of_text(text: str) -> None:
    assert parse_yaml(f"a: {text}\n", "x.yaml") == {"a": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("0", 0), ("12", 12), ("-5", -5), ("1.10", 1.1), (".5", 0.5), ("5.", 5.0), ("1e5", 1e5), ("-1E-3", -1e-3)],
        *[("true", True), ("False", False), ("null", None), ("~", None), ("", None), (".inf", float("inf"))],
    ],
)
def test_parse_yaml_reads_numbers_and_words_of_yaml_1_2(text: str, value: object) -> None:
    found = parse_yaml(f"a: {text}\n", "x.yaml")["a"]
    assert (type(found), found) == (type(value), value)


def test_parse_yaml_reads_shipped_presets_like_hydra() -> None:
    for file in conf_dir().rglob("*.yaml"):
        assert parse_yaml(file.read_text(), str(file)) == OmegaConf.to_container(OmegaConf.load(file)), file


def test_parse_yaml_reads_pyyaml_output() -> None:
    tree = {text: [text, 1, 0.1, 1e-6, None, True] for text in TEXTS}
    assert parse_yaml(yaml.safe_dump(tree), "x.yaml") == tree


def test_load_config_keeps_texts_of_preset(tmp_path: Path) -> None:
    text = "job:\n  time_limit: 24:00:00\nname: 2025_11_26\ncluster:\n  launcher: slurm\n"
    text += "  env: {A: 1_000, B: 0123, C: on}\n"
    text += "  slurm: {account: 0123, comment: 12:30, extra: {begin: 16:00:00}}\n  setup: [1:30]\n"
    text += "container: {image: /i.sif, runtime: apptainer, extra_args: [--cpus, 1_0]}\n"
    write(tmp_path, PACKAGE + text)
    config = load_config(["+exp=demo", "cluster=mine"], config_dir=str(tmp_path))
    assert (config.job.time_limit_min, config.name) == (24 * 60, "2025_11_26")
    assert config.cluster.env == {"A": "1_000", "B": "0123", "C": "on"}
    slurm = config.cluster.slurm
    assert (slurm.account, slurm.comment, slurm.extra) == ("0123", "12:30", {"begin": "16:00:00"})
    assert (config.cluster.setup, config.container.extra_args) == (["1:30"], ("--cpus", "1_0"))


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("cluster:\n  env: {A: 1.10}", "cluster.env.A"),
        ("cluster:\n  slurm: {account: 1e5}", "cluster.slurm.account"),
        ("cluster:\n  slurm: {extra: {x: 1.0}}", "cluster.slurm.extra.x"),
        ("job:\n  time_limit: 1.5", "job.time_limit"),
        ("job:\n  time_limit: true", "job.time_limit"),
    ],
)
def test_load_config_refuses_number_without_spelling(tmp_path: Path, lines: str, key: str) -> None:
    write(tmp_path, f"{PACKAGE}{lines}\n")
    with pytest.raises(ConfigError, match=rf'{key}.*quotes: key: "1.10"'):
        load_config(["+exp=demo", "cluster=mine"], config_dir=str(tmp_path))


WRONG: dict[str, tuple[str | bytes, str]] = {
    "a tab": (f"{PACKAGE}job:\n\ttime_limit: 1\n", "line 3, column 1.*indent with spaces"),
    "an open brace": (f"{PACKAGE}job: {{a\n", "mine.yaml, line 3"),
    "a key twice": (f"{PACKAGE}job:\n  debug: true\n  debug: false\n", "line 4, column 3: duplicate key 'debug'"),
    "another tag": (f"{PACKAGE}name: !!python/name:os.system\n", "line 2"),
    "a list": (f"{PACKAGE}- a\n", "must be a mapping"),
    "a header of three words": ("# @package _global_ x\nname: a\n", "header"),
    "no package": ("job:\n  max_failures: 1\n", "lacks the line `# @package _global_`.*which sets job"),
    "a package after a comment": (f"# Mine.\n{PACKAGE}cluster:\n  num_nodes: 2\n", "which sets cluster"),
    "UTF-16": (f"{PACKAGE}name: a\n".encode("utf-16"), "must be UTF-8"),
    "a control character": (f"{PACKAGE}name: \x01\n", "mine.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_broken_preset_is_refused_with_file_and_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = WRONG[name]
    file = write(tmp_path, text)
    assert main(["plan", "+exp=demo", "cluster=mine", "--config-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert re.search(message, error), error


def test_load_config_reads_preset_with_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbf" + f"{PACKAGE}job:\n  time_limit: 2:00:00\n".encode())
    assert load_config(["+exp=demo", "cluster=mine"], config_dir=str(tmp_path)).job.time_limit_min == 120


def test_load_config_reads_group_preset_without_package(tmp_path: Path) -> None:
    write(tmp_path, "num_nodes: 3\n")
    assert load_config(["+exp=demo", "cluster=mine"], config_dir=str(tmp_path)).cluster.num_nodes == 3


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1.10", "1.10"),
        ("1_000", "1_000"),
        ("+5", "+5"),
        ("1e5", "1e5"),
        ("007", "007"),
        ("24:00:00", "24:00:00"),
        ("nan", "nan"),
        ("'1.10'", "1.10"),
        ("12", "12"),
        ("a 1.0 b", "a 1.0 b"),
    ],
)
def test_load_config_keeps_spelling_of_override(word: str, value: str) -> None:
    config = load_config(["+exp=demo", f"+cluster.env.A={word}", f"cluster.slurm.account={word}"])
    assert (config.cluster.env["A"], config.cluster.slurm.account) == (value, value)


def test_load_config_keeps_spelling_inside_lists_and_tables() -> None:
    words = ["cluster.setup=[1.10,'a,2.0',b]", "++cluster.env={A: 1_0 ,B:.5,C:x}", "+cluster.env.D=${seed}"]
    config = load_config(["+exp=demo", *words])
    assert config.cluster.setup == ["1.10", "a,2.0", "b"]
    assert config.cluster.env == {"A": "1_0", "B": ".5", "C": "x", "D": "0"}
    config = load_config(["+exp=demo", "cluster.slurm={account: 1_000, nice: 1_0}", "optim.lr=1e-5"])
    assert (config.cluster.slurm.account, config.cluster.slurm.nice, config.optim.lr) == ("1_000", 10, 1e-5)
