"""Every command line that we build is read by the program it is for: its own argparse, or its own Hydra schema.

The released packages are never imported here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_rl.config.external import ExternalConfig
from slurm_rl.config.load import conf_dir
from slurm_rl.external.arguments import ExternalRun
from slurm_rl.external.build import build_external_argv

HERE = Path(__file__).parent
PROGRAMS = ("openrlhf", "verl", "maxtext")
EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "exp").glob("*.yaml") if path.stem.startswith(PROGRAMS))

# Names in MaxText's configs/post_train/rl.yml and the base.yml under it (November 2026); it is on no package index.
MAXTEXT_KEYS = {
    "base_output_directory", "batch_size", "checkpoint_period", "dataset_name", "decode_sampling_temperature",
    "hbm_utilization_vllm", "learning_rate", "load_parameters_path", "max_num_checkpoints_to_keep",
    "max_prefill_predict_length", "max_target_length", "micro_batch_size", "model_name", "num_batches", "num_epoch",
    "rl.grpo_beta", "rl.loss_algo", "rl.num_generations", "rl.num_iterations", "rollout_tensor_parallelism", "run_name",
    "tokenizer_path",
}  # fmt: skip


def build(name: str, *, resume: bool = False, **more: Any) -> tuple[ExternalConfig, list[str]]:
    tree = yaml.safe_load((conf_dir() / "exp" / f"{name}.yaml").read_text())
    config = ExternalConfig.model_validate({**tree["external"], **more})
    # An experiment names no machine; these are the sizes of the scripts that most of them come from.
    run = ExternalRun(
        name="r1",
        nodes=2 if config.method == "ppo" else 1,
        gpus_per_node=8,
        checkpoints="/run/checkpoints",
        output="/run/export",
        resume=resume,
    )
    return config, list(build_external_argv(config, run))


def parse_openrlhf(packages: Path, config: ExternalConfig, argv: list[str]) -> dict[str, Any]:
    command = [
        sys.executable,
        str(HERE / "parse_openrlhf.py"),
        str(packages / config.flags),
        *argv[argv.index("-m") + 1 :],
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("openrlhf")])
@pytest.mark.parametrize("resume", [False, True])
def test_openrlhf_takes_every_argument(name: str, resume: bool, packages: Path) -> None:
    config, argv = build(name, resume=resume)
    seen = parse_openrlhf(packages, config, argv)
    if config.flags == "flat":
        assert (seen["train_batch_size"], seen["load_checkpoint"]) == (config.train_batch_size, resume)
        assert seen["actor_learning_rate"] == config.lr and seen["actor_num_gpus_per_node"] == 4
    else:
        assert (seen["train"]["batch_size"], seen["ckpt"]["load_enable"]) == (config.train_batch_size, resume)
        assert (seen["actor"] if config.method == "ppo" else seen)["adam"]["lr"] == config.lr


def test_every_common_field_reaches_openrlhf(packages: Path) -> None:
    more: dict[str, Any] = {"policy_loss": "gspo", "eval_data": "e", "engines": 3, "temperature": 0.7, "steps": None}
    config, argv = build("openrlhf_grpo_mathv60k", **more)
    seen = parse_openrlhf(packages, config, argv)
    assert seen["actor"]["policy_loss_type"] == "gspo" and seen["algo"]["advantage"]["estimator"] == "group_norm"
    assert (seen["vllm"]["num_engines"], seen["rollout"]["temperature"]) == (3, 0.7)
    assert seen["algo"]["kl"] | {"init_coef": 0.001, "use_loss": True, "estimator": "k3"} == seen["algo"]["kl"]
    assert seen["data"]["max_len"] == 32000 and seen["rollout"]["max_new_tokens"] == 8000


def test_openrlhf_refuses_what_it_does_not_know(packages: Path) -> None:
    config, argv = build("openrlhf_dpo_llama3_8b", args={"no.such.flag": 1})
    with pytest.raises(AssertionError, match=r"unrecognized arguments: --no\.such\.flag"):
        parse_openrlhf(packages, config, argv)


def compose_verl(packages: Path, argv: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    assert argv[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(packages / "verl/verl/trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=argv[3:])


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("verl")])
def test_verl_takes_every_override(name: str, packages: Path) -> None:
    config, argv = build(name)
    seen = compose_verl(packages, argv)
    assert seen.actor_rollout_ref.actor.ppo_mini_batch_size == config.train_batch_size
    assert (seen.trainer.nnodes, seen.trainer.n_gpus_per_node, seen.trainer.resume_mode) == (2, 8, "disable")
    assert seen.actor_rollout_ref.actor.optim.lr == config.lr and seen.critic.model.path == config.critic_model
    assert list(seen.trainer.logger) == (["console", "wandb"] if config.wandb_project else ["console"])


def test_every_common_field_reaches_verl(packages: Path) -> None:
    more: dict[str, Any] = {
        "advantage": "grpo",
        "policy_loss": "gspo",
        "samples_per_prompt": 8,
        "kl_in_loss": True,
        "kl_estimator": "k3",
        "reward_function": "/x/reward.py",
        "reward_model": "rm",
        "max_samples": 10,
        "steps": 7,
        "epochs": 2,
        "keep_checkpoints": 2,
        "temperature": 0.7,
        "input_key": "question",
        "wandb_project": "p",
    }
    seen = compose_verl(packages, build("verl_ppo_gsm8k", resume=True, **more)[1])
    actor = seen.actor_rollout_ref.actor
    assert (actor.policy_loss.loss_mode, actor.use_kl_loss, actor.kl_loss_type) == ("gspo", True, "low_var_kl")
    assert (seen.actor_rollout_ref.rollout.n, actor.ppo_mini_batch_size, actor.ppo_epochs) == (8, 8, 2)
    assert seen.trainer.resume_mode == "auto" and seen.reward.custom_reward_function.path == "/x/reward.py"


def test_verl_refuses_what_it_does_not_know(packages: Path) -> None:
    from hydra.errors import ConfigCompositionException

    with pytest.raises(ConfigCompositionException, match="no_such_key"):
        compose_verl(packages, build("verl_ppo_gsm8k", args={"trainer.no_such_key": 1})[1])


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("maxtext")])
def test_maxtext_knows_every_key(name: str) -> None:
    every = {
        "samples_per_prompt": 8, "epochs": 1, "kl_coefficient": 0.08, "lr": 3e-6, "steps": 10, "episodes": 1,
        "prompts_per_step": 1, "micro_batch_size": 1, "max_prompt_tokens": 256, "max_response_tokens": 768,
        "temperature": 0.9, "gpu_memory": 0.7, "save_every": 50, "keep_checkpoints": 10, "tensor_parallel": 4,
        "train_data": "gsm8k",
    }  # fmt: skip
    for more in ({}, every):
        config, argv = build(name, **more)
        words = [word.partition("=")[0] for word in argv[4:]]
        assert argv[2] == "src.maxtext.trainers.post_train.rl.train_rl" and set(words) <= MAXTEXT_KEYS
    assert set(words) == MAXTEXT_KEYS
    loss = "gspo-token" if config.policy_loss == "gspo" else "grpo"
    assert f"rl.loss_algo={loss}" in argv
