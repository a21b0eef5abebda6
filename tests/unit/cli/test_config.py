import re
from pathlib import Path

import pytest

from slurm_rl.__main__ import main
from slurm_rl.cli.config import WIDTH
from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import load_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.config.presets import describe_preset, list_presets
from slurm_rl.config.run import RunConfig
from slurm_rl.config.section import Section
from tests.reference import ROOT, render_plainly

PRESETS = list_presets([conf_dir()])
UNITS = {"_s": "second", "_gb": r"Gi?B|GB", "_mb": "MiB|megabyte", "_tokens": "token|Token"}
"""Suffix of a key -> pattern of its type or description."""


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", *words]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_keys_and_presets_have_meaning_and_type() -> None:
    assert [key.name for key in list_keys().values() if not (len(key.meaning) > 5 and key.type)] == []
    assert [file for files in PRESETS.values() for file in files.values() if len(describe_preset(file)) < 15] == []
    repeated = [key.name for key in list_keys().values() if key.meaning.rstrip(".").lower() == key.name.lower()]
    assert repeated == []


@pytest.mark.parametrize("end", UNITS)
def test_key_with_unit_names_it(end: str) -> None:
    keys = [key for key in list_keys().values() if key.name.endswith(end)]
    assert keys
    assert [key.name for key in keys if not re.search(UNITS[end], f"{key.type} {key.meaning}")] == []


def test_keys_match_pydantic_with_defaults() -> None:
    config = load_config(["+exp=demo"])

    def walk(section: Section, prefix: str) -> list[str]:
        names = []
        for name in type(section).model_fields:
            value = getattr(section, name)
            names += [prefix + name, *(walk(value, f"{prefix}{name}.") if isinstance(value, Section) else [])]
        return names

    found = walk(config, "")
    assert set(found) <= set(list_keys())
    null_in_demo = {"model.lora", "model.rope_scaling", "data.curriculum", "external"}
    assert {name.rpartition(".")[0] for name in set(list_keys()) - set(found)} == null_in_demo
    assert list_keys()["critic.optim.lr"].default == RunConfig.model_fields["critic"].default.optim.lr


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("optim.lr", "number > 0"),
        ("algorithm.loss", "one of grpo, gspo, gspo_token, cispo, file.py:name"),
        ("algorithm.correction.kind", "one of auto, token_tis, sequence_mask, geometric_mask, icepop, or null"),
        ("model.gradient_checkpointing", "true, false, or auto"),
        ("optim.betas", "2 in a list, each number >= 0 and <= 1"),
        ("container.mounts", "list of text, or {source, target, read_only}"),
        ("reward.verifiers", "table of arithmetic, math, code, format, each number"),
        ("model.lora", "section, or null"),
        ("job.start_timeout_s", "number > 0, seconds"),
    ],
)
def test_choices_and_ranges_match_models(key: str, kind: str) -> None:
    assert list_keys()[key].type == kind


def test_command_lists_sections_values_and_readers(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys)
    for name in RunConfig.model_fields:
        assert len(re.findall(rf"^  {name} +\S", told, re.MULTILINE)) == 1, name
    told = ask(capsys, "+exp=demo", "optim.lr=1e-4")
    assert "  optim.lr=0.0001\n" in told and "  trainer.prompts_per_step=64\n" in told
    assert "\n  optim.betas" not in told, "as by default"
    told = ask(capsys, "eval", "+exp=demo", "eval.interval=7")
    assert "eval.interval=7  (default 0)" in told
    assert "Read with task=grpo, sft, rm, dpo." in told
    assert re.search(r"eval\.greedy=true .*true or false\n    Evaluate .* Read with task=grpo\.", told)


def test_key_shows_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    told = ask(capsys, "model.dtype", "+exp=demo", "+cluster=nvidia_h100")
    told = " ".join(told.split())
    assert "value bfloat16 default auto type one of auto, float32, bfloat16 read with task=grpo, sft, rm, dpo" in told
    assert "set by model.dtype=" in told
    assert "value      10190" in ask(capsys, "cluster.head_port")
    assert "every task" in ask(capsys, "cluster.env.NCCL_DEBUG"), "an entry of a table is explained by the table"


def test_group_lists_its_presets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "dr_grpo: Dr. GRPO, https://arxiv.org/abs/2503.20783: no division" in ask(capsys, "+algorithm")
    assert "dapo: DAPO" in ask(capsys, "+algorithm")
    assert "demo: The demo" in ask(capsys, "exp"), "a group that is no section needs no plus"
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "ours.yaml").write_text("# @package _global_\n# Our nodes. They are old.\ncluster: {}\n")
    assert "  ours: Our nodes.\n" in ask(capsys, "+cluster", "--config-dir", str(tmp_path))


@pytest.mark.parametrize("name", ["", *RunConfig.model_fields, *(f"+{group}" for group in PRESETS)])
def test_output_fits_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    long = [
        line for line in ask(capsys, *filter(None, [name])).splitlines() if len(line) > WIDTH and " " in line.strip()
    ]
    assert long == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimm"], "did you mean optim?"),
        (["optim.lrr"], "did you mean optim.lr?"),
        (["lr"], "did you mean optim.lr or critic.optim.lr or warmup.optim.lr?"),
        (["+algoritm"], "did you mean +algorithm?"),
        (["optim", "model"], "one at a time"),
        (["optim", "optim.lr=-1"], "optim.lr: Input should be greater than 0; got -1"),
    ],
)
def test_unknown_name_suggests_valid_ones(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err[:10]) == ("", "slurm_rl: ")
    assert said in shown.err


@pytest.mark.parametrize("page", render_plainly())
def test_page_is_current(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == render_plainly()[page], "python -m tests.reference writes it"
