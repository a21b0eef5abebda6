"""Parsers of OpenRLHF, verl, TRL, SkyRL and torchtitan accept our command lines, and names in docs/from/moving-*.

The released packages of OpenRLHF and verl are never imported here; test_trl_run.py runs a script of TRL.
"""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from slurm_rl.config.preset_folders import conf_dir
from tests.docs.markdown import DOCS, code_spans, read_tables
from tests.train.external.releases import NEEDED_BY_TORCHTITAN, RELEASES, build, unpack

FOLDER = Path(__file__).parent
PROGRAMS = ("openrlhf", "verl")
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("*.yaml") if path.stem.startswith(PROGRAMS))


def parse_openrlhf(packages: Path, argv: list[str]) -> dict[str, Any]:
    release = packages / ("dotted" if "--ckpt.path" in argv else "flat")
    command = [sys.executable, str(FOLDER / "parse_openrlhf.py"), str(release), *argv[argv.index("-m") + 1 :]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("openrlhf")])
@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_openrlhf_accepts_arguments(name: str, resume: bool, packages: Path) -> None:
    args, argv = build(name, resume=resume)
    seen = parse_openrlhf(packages, argv)
    if name.endswith("_flat"):
        assert (seen["train_batch_size"], seen["load_checkpoint"]) == (args["train_batch_size"], resume)
        assert seen["actor_learning_rate"] == args["actor_learning_rate"] and seen["actor_num_gpus_per_node"] == 4
    else:
        assert (seen["train"]["batch_size"], seen["ckpt"]["load_enable"]) == (args["train.batch_size"], resume)
        is_sampling = "actor.adam.lr" in args
        lr = seen["actor"]["adam"]["lr"] if is_sampling else seen["adam"]["lr"]
        assert lr == args["actor.adam.lr" if is_sampling else "adam.lr"]


def test_override_of_any_argument_reaches_openrlhf(packages: Path) -> None:
    words = ["actor.policy_loss_type=gspo", "eval.dataset=e", "vllm.num_engines=3", "rollout.temperature=0.7"]
    _, argv = build("openrlhf_grpo_mathv60k", *(f"external.args.{word}" for word in words))
    seen = parse_openrlhf(packages, argv)
    assert seen["actor"]["policy_loss_type"] == "gspo" and seen["algo"]["advantage"]["estimator"] == "group_norm"
    assert (seen["vllm"]["num_engines"], seen["rollout"]["temperature"]) == (3, 0.7)
    assert seen["algo"]["kl"] | {"init_coef": 0.001, "use_loss": True, "estimator": "k3"} == seen["algo"]["kl"]
    assert seen["data"]["max_len"] == 32000 and seen["rollout"]["max_new_tokens"] == 8000
    _, argv = build("openrlhf_dpo_llama3_8b", "external.args.no.such.flag=1")
    with pytest.raises(AssertionError, match=r"unrecognized arguments: --no\.such\.flag"):
        parse_openrlhf(packages, argv)


def compose_verl(packages: Path, argv: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    with initialize_config_dir(str(packages / "verl/verl/trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=argv[3:])


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("verl")])
def test_verl_accepts_overrides(name: str, packages: Path) -> None:
    args, argv = build(name)
    assert argv[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    seen = compose_verl(packages, argv)
    assert (seen.trainer.nnodes, seen.trainer.n_gpus_per_node, seen.trainer.resume_mode) == (2, 8, "disable")
    keys = ("actor_rollout_ref.actor.ppo_mini_batch_size", "critic.optim.lr", "critic.model.path", "trainer.logger")
    assert {key: OmegaConf.select(seen, key) for key in keys} == {key: args[key] for key in keys}


def test_override_of_any_argument_reaches_verl(packages: Path) -> None:
    from hydra.errors import ConfigCompositionException

    words = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", "trainer.total_training_steps=7"]
    words += ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "reward.custom_reward_function.path=/x/reward.py"]
    argv = build("verl_ppo_gsm8k", *(f"external.args.{word}" for word in words), resume=True)[1]
    seen = compose_verl(packages, argv)
    assert (seen.actor_rollout_ref.rollout.n, seen.trainer.total_training_steps) == (8, 7)
    assert seen.actor_rollout_ref.actor.policy_loss.loss_mode == "gspo" and seen.algorithm.adv_estimator == "grpo"
    assert seen.trainer.resume_mode == "resume_path"
    assert seen.trainer.resume_from_path == "/run/checkpoints/global_step_7"
    assert seen.reward.custom_reward_function.path == "/x/reward.py"
    with pytest.raises(ConfigCompositionException, match="no_such_key"):
        compose_verl(packages, build("verl_ppo_gsm8k", "external.args.trainer.no_such_key=1")[1])


def test_verl_accepts_arguments_for_time_limit(packages: Path) -> None:
    seen = compose_verl(packages, build("verl_ppo_gsm8k", limit_s=600)[1])
    # Ray requires text.
    variables = {"MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP": "1000600"}
    assert seen.ray_kwargs.ray_init.runtime_env.env_vars == variables
    module, _, name = seen.trainer.checkpoint_callback_class.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def page_names(page: str, release: str) -> set[str]:
    """Return the names in the tables of a page, which must name the tested release."""
    assert RELEASES[release].replace("==", " ").lower() in (DOCS / page).read_text().lower()
    return {word for row in read_tables(DOCS / page) for word in code_spans(row[0])}


def test_openrlhf_has_flags_of_its_page(packages: Path) -> None:
    known: set[str] = set()
    for file in (packages / "dotted/openrlhf/cli").glob("train_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                known |= {str(arg.value).lstrip("-") for arg in node.args if isinstance(arg, ast.Constant)}
    assert page_names("from/moving-openrlhf.md", "dotted") - known == set()


def test_verl_has_keys_of_its_page(packages: Path) -> None:
    config, missing = compose_verl(packages, []), object()
    names = page_names("from/moving-verl.md", "verl")
    assert [word for word in names if OmegaConf.select(config, word, default=missing) is missing] == []


TRL_EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("trl_*.yaml"))


def build_trl(name: str, *words: str, resume: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of the experiment, and the module with its command line."""
    # This machine may have no GPU.
    overrides = [f"external.args.{word}" for word in ("use_cpu=true", *words)]
    args, argv = build(name, *overrides, resume=resume, step="checkpoint-7")
    assert argv[:2] == ["python3", "-m"]
    return args, argv[2:]


CASES = {
    **{f"{name} {resume}": build_trl(name, resume=resume) for name in TRL_EXPERIMENTS for resume in (False, True)},
    "override": build_trl("trl_grpo_deepmath", "beta=0.04", "loss_type=dapo", "use_vllm=true", "vllm_mode=colocate"),
    "unknown": build_trl("trl_grpo_deepmath", "no_such_flag=1"),
}


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Return TRL's parsed arguments for each case, from one process because the import is slow."""
    script = Path(__file__).with_name("parse_trl.py")
    words = json.dumps([argv for _, argv in CASES.values()])
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, str(script), words], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", TRL_EXPERIMENTS)
@pytest.mark.parametrize("resume", [False, True])
def test_trl_accepts_arguments(name: str, resume: bool, seen: dict[str, Any]) -> None:
    args, _ = CASES[f"{name} {resume}"]
    found = seen[f"{name} {resume}"]
    assert "error" not in found, found
    for key, value in args.items():
        if key == "report_to":
            assert found[key] in (value, []), "TRL's own word for nobody"
        elif "${" not in str(value):
            assert found[key] == value, key
    assert found["output_dir"] == "/run/checkpoints" and found["enable_jit_checkpoint"] is True
    assert found["resume_from_checkpoint"] == ("/run/checkpoints/checkpoint-7" if resume else None)


def test_override_of_any_argument_reaches_trl(seen: dict[str, Any]) -> None:
    found = seen["override"]
    assert (found["beta"], found["loss_type"], found["use_vllm"]) == (0.04, "dapo", True)
    assert found["reward_funcs"] == ["accuracy_reward"] and found["num_generations"] == 8
    assert "no_such_flag" in seen["unknown"]["error"]


def parse_by_script(script: str, package: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder, which parses the arguments with the unpacked package."""
    return subprocess.run([sys.executable, str(FOLDER / script), package, *argv], capture_output=True, text=True)


@pytest.fixture(scope="module")
def skyrl(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(unpack(tmp_path_factory.mktemp("skyrl"), "skyrl"))


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_skyrl_accepts_overrides(skyrl: str, resume: bool) -> None:
    args, argv = build("skyrl_grpo_gsm8k", resume=resume)
    done = parse_by_script("parse_skyrl.py", skyrl, *argv[3:])
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    trainer, engines = seen["trainer"], seen["generator"]["inference_engine"]
    assert (trainer["placement"]["policy_num_nodes"], trainer["placement"]["ref_num_gpus_per_node"]) == (2, 8)
    assert (engines["num_engines"], trainer["ckpt_path"]) == (16, "/run/checkpoints")
    assert trainer["policy"]["optimizer_config"]["lr"] == args["trainer.policy.optimizer_config.lr"]
    assert seen["data"]["train_data"] == args["data.train_data"]
    path = "/run/checkpoints/global_step_7" if resume else None
    assert (trainer["resume_mode"], trainer["resume_path"]) == ("from_path" if resume else "none", path)


def test_skyrl_refuses_unknown_argument(skyrl: str) -> None:
    argv = build("skyrl_grpo_gsm8k", "external.args.trainer.no_such_key=1")[1]
    done = parse_by_script("parse_skyrl.py", skyrl, *argv[3:])
    assert done.returncode != 0 and "no_such_key" in done.stderr


def test_torchtitan_accepts_flags(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("torchtitan")
    folders = ":".join(str(unpack(root, name)) for name in ("torchtitan", *NEEDED_BY_TORCHTITAN))
    argv = build("torchtitan_llama3_8b", "external.args.checkpoint.interval=25")[1]
    assert argv[:3] == ["python3", "-m", "torchtitan.train"]
    done = parse_by_script("parse_torchtitan.py", folders, *argv[3:])
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    # -1: the newest step of this folder.
    checkpoint = {"enable": True, "interval": 25, "folder": "checkpoint", "load_step": -1}
    assert seen == {"dump_folder": "/run/checkpoints", "steps": 1000, **checkpoint}
    assert "no_such" in parse_by_script("parse_torchtitan.py", folders, *argv[3:], "--no_such", "1").stderr
