"""The parsers of NeMo-RL, prime-rl, slime and open-instruct accept our command lines, given records of their configs.

They are on no package index. NeMo-RL's arguments are parsed by the installed Hydra, as in its `run_grpo.py`; prime-rl's
parser is the package prime-pydantic-config, slime's is argparse, and open-instruct's is transformers' HfArgumentParser.
Keys and types come from recorded/*.json, made by record.py.
"""

import argparse
import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import DictConfig, OmegaConf

from slurm_rl.config.load import load_config
from slurm_rl.plan.external_argv import flatten
from tests.docs.markdown import DOCS, code_spans, read_tables
from tests.train.external.record import FOLDER, RECORDERS
from tests.train.external.releases import build, list_keys, unpack

RECORDED: dict[str, dict[str, Any]] = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in RECORDERS}
# One value per type, to build the recorded config.
VALUES = {"int": 1, "float": 1.0, "bool": False, "str": "text", "NoneType": None, "list": [], "reference": 1}


def build_recorded_config(types: Any) -> Any:
    """Return a config with the recorded keys."""
    if isinstance(types, dict):
        return {key: build_recorded_config(below) for key, below in types.items()}
    return {} if types == "table" else VALUES[types]


def parse_nemo_rl(argv: list[str]) -> DictConfig:
    """Parse as examples/run_grpo.py and nemo_rl/utils/config.py do."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    record = RECORDED["nemo_rl"]
    script = next(place for place, word in enumerate(argv) if word.endswith("run_grpo.py"))
    parser = argparse.ArgumentParser()
    for flag in record["flags"]:
        parser.add_argument(flag)
    args, overrides = parser.parse_known_args(argv[script + 1 :])
    assert args.config.endswith(f"/{record['config']}")
    config = OmegaConf.create(build_recorded_config(record["keys"]))
    OmegaConf.set_struct(config, True)
    parsed = OverridesParser.create().parse_overrides(overrides=overrides)
    ConfigLoaderImpl._apply_overrides_to_config(overrides=parsed, cfg=config)
    assert isinstance(config, DictConfig)
    return config


@pytest.mark.parametrize("resume", [False, True])
def test_nemo_rl_accepts_overrides_with_its_types(resume: bool) -> None:
    args, argv = build("nemo_rl_grpo_math_1b", resume=resume)
    seen = parse_nemo_rl(argv)
    assert (seen.cluster.num_nodes, seen.cluster.gpus_per_node) == (2, 8)
    assert seen.checkpointing.checkpoint_dir == "/run/checkpoints"
    types = flatten(RECORDED["nemo_rl"]["keys"])
    for key, value in args.items():
        got = OmegaConf.select(seen, key)
        assert type(got).__name__ == types[key], f"{key} is {types[key]} in its config; got {got!r}"
        assert "${" in str(value) or got == value


def test_override_of_any_argument_reaches_nemo_rl() -> None:
    words = ["policy.generation.temperature=0.7", "grpo.max_num_steps=9", "loss_fn.reference_policy_kl_penalty=0"]
    seen = parse_nemo_rl(build("nemo_rl_grpo_math_1b", *(f"external.args.{word}" for word in words))[1])
    assert (seen.policy.generation.temperature, seen.grpo.max_num_steps) == (0.7, 9)
    assert seen.loss_fn.reference_policy_kl_penalty == 0
    with pytest.raises(Exception, match="no_such_key"):
        parse_nemo_rl(build("nemo_rl_grpo_math_1b", "external.args.grpo.no_such_key=1")[1])


def test_nemo_rl_gets_time_until_limit_in_its_format() -> None:
    limit = RECORDED["nemo_rl"]["limit"]
    seen = parse_nemo_rl(build("nemo_rl_grpo_math_1b", limit_s=93_784 + 900)[1])
    # 93,784 s after set-up.
    assert seen.checkpointing.checkpoint_must_save_by == "01:02:03:04"
    assert limit["units"] == ["days", "hours", "minutes", "seconds"]
    config = load_config(["+cluster=nvidia_a100", "external=nemo_rl"]).external
    assert config is not None and config.limit_message is not None
    assert {"grpo", "grpo_sync", "ppo", "sft", "dpo", "rm"} <= set(limit["said"][config.limit_message])


def test_nemo_rl_page_names_its_keys() -> None:
    """The keys of its SFT and DPO, in other files, were compared by hand."""
    named = [name for cells in read_tables(DOCS / "from/moving-nemo-rl.md") for name in code_spans(cells[0])]
    names = [name for name in named if name.partition(".")[0] not in ("sft", "dpo")]
    assert len(names) > 60 and set(names) - list_keys(RECORDED["nemo_rl"]["keys"]) == set()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """prime-rl's parser."""
    return unpack(tmp_path_factory.mktemp("prime"), "prime")


def parse_prime_rl(package: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Parse the command line of our preset with other arguments."""
    _, argv = build("prime_rl_reverse_text", *(f"external.args.{word}" for word in words), nodes=1, **options)
    record = RECORDED["prime_rl"]
    assert argv[:2] == ["rl", "@"] and argv[2].endswith(f"/{record['config']}")
    example = package.parent / "example.json"
    example.write_text(json.dumps(record["example"]))
    script = Path(__file__).with_name("parse_prime_rl.py")
    command = [sys.executable, str(script), str(package), str(FOLDER / "prime_rl.json"), "@", str(example), *argv[3:]]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_prime_rl_accepts_arguments_over_its_example(package: Path, resume: bool) -> None:
    done = parse_prime_rl(package, resume=resume, step="step_7")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    gpus = {"gpus_per_node": 8, "num_train_gpus": 4, "num_infer_gpus": 4}
    assert seen["deployment"] == {"type": "single_node", **gpus}
    assert (seen["output_dir"], seen["run"]["name"]) == ("/run/checkpoints", "prime_rl_reverse_text")
    assert (seen["clean"], seen["ckpt"]["interval"], seen["max_steps"]) == (True, 5, 20)
    # Set by its example and not by the preset.
    assert seen["trainer"] == {"optim": {"lr": 3e-6}} and seen["seq_len"] == 2048
    assert seen["resume"] == ({"step": 7, "dir": None} if resume else None)


def test_override_of_any_argument_reaches_prime_rl(package: Path) -> None:
    words = ["max_steps=3", "ckpt.keep_last=2", "deployment.num_train_gpus=2", "log.level=debug"]
    done = parse_prime_rl(package, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout)
    assert (seen["max_steps"], seen["ckpt"]["keep_last"], seen["log"]["level"]) == (3, 2, "debug")
    assert (seen["deployment"]["num_train_gpus"], seen["deployment"]["num_infer_gpus"]) == (2, 4)


@pytest.mark.parametrize("word", ["no_such_key=1", "deployment.num_train_gpus=many", "ckpt.keep_last=0"])
def test_prime_rl_refuses_unknown_arguments(package: Path, word: str) -> None:
    name = word.partition("=")[0].rpartition(".")[2]
    done = parse_prime_rl(package, word)
    assert done.returncode != 0 and name in done.stdout + done.stderr


def parse_slime(argv: list[str]) -> argparse.Namespace:
    """Parse with slime's own arguments; flags of Megatron and SGLang are known by name only, from slime's scripts."""
    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")
    for flag, words in RECORDED["slime"]["own"].items():
        known = {"int": int, "float": float, "str": str}
        options: dict[str, Any] = {"type": known[words["type"]]} if words.get("type") in known else {}
        if "action" in words:
            is_text = words["action"].startswith("'")
            options["action"] = words["action"].strip("'") if is_text else argparse.BooleanOptionalAction
        elif "nargs" in words:
            options["nargs"] = words["nargs"].strip("'")
        parser.add_argument(flag, **options)
    for flag in RECORDED["slime"]["used"]:
        parser.add_argument(flag, nargs="?", const=True)
    return parser.parse_args(argv)


@pytest.mark.parametrize("resume", [False, True])
def test_slime_accepts_flags(resume: bool) -> None:
    _, argv = build("slime_grpo_qwen3_4b", resume=resume, step="iter_0000007")
    assert argv[:2] == ["python3", "/root/slime/train.py"]
    seen = parse_slime(argv[2:])
    assert (seen.actor_num_nodes, seen.actor_num_gpus_per_node, seen.colocate) == (2, 8, True)
    assert (seen.save, seen.load, seen.save_interval) == (
        "/run/checkpoints",
        "/run/checkpoints" if resume else None,
        20,
    )
    assert (seen.num_rollout, seen.lr, seen.swiglu) == (3000, 1e-6, True)
    with pytest.raises(SystemExit):
        parse_slime([*argv[2:], "--no-such-flag", "1"])


def parse_open_instruct(argv: list[str]) -> argparse.Namespace:
    from transformers import HfArgumentParser

    fields = []
    for name, (annotation, default) in RECORDED["open_instruct"]["fields"].items():
        names = {"Literal": Literal}
        try:
            kind = eval(annotation, names)
        except NameError:  # an enum of its own
            kind, default = str | None, "None"
        if default is None:
            fields.append((name, kind))
            continue
        # Other defaults are factories, or computed from the machine.
        is_literal = not default.startswith("field(") and default[0] in "'\"-0123456789TFN"
        value = ast.literal_eval(default) if is_literal else None
        fields.append((name, kind, dataclasses.field(default=value)))
    fields.sort(key=len)
    parser = HfArgumentParser([dataclasses.make_dataclass("Arguments", fields)])
    (seen,) = parser.parse_args_into_dataclasses(argv)
    found: argparse.Namespace = seen
    return found


def test_open_instruct_accepts_flags() -> None:
    _, argv = build("open_instruct_grpo_gsm8k", nodes=1)
    assert argv[:2] == ["python3", "/stage/open_instruct/grpo_fast.py"]
    seen = parse_open_instruct(argv[2:])
    assert (seen.num_learners_per_node, seen.vllm_num_engines) == ([4], 4)
    assert (seen.checkpoint_state_dir, seen.checkpoint_state_freq) == ("/run/checkpoints/state", 20)
    assert (seen.push_to_hub, seen.try_auto_save_to_beaker, seen.gradient_checkpointing) == (False, False, True)
    assert seen.dataset_mixer_list == ["ai2-adapt-dev/rlvr_gsm8k_zs", "1.0"] and seen.learning_rate == 3e-7
    with pytest.raises(ValueError, match="no_such_flag"):
        parse_open_instruct([*argv[2:], "--no_such_flag", "1"])
