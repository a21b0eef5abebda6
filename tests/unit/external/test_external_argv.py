"""Command lines of external trainers, from their common fields."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from slurm_rl.config.external import ExternalConfig
from slurm_rl.errors import ConfigError
from slurm_rl.external.arguments import ExternalRun
from slurm_rl.external.build import build_external_argv

RUN = ExternalRun(name="r1", nodes=2, gpus_per_node=8, checkpoints="/run/ckpt", output="/run/out")


def build(run: ExternalRun = RUN, **fields: Any) -> tuple[str, ...]:
    return build_external_argv(ExternalConfig.model_validate(fields), run)


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def again(**fields: Any) -> ExternalRun:
    return ExternalRun(**{**vars(RUN), "resume": True, **fields})


def test_openrlhf_in_both_styles() -> None:
    fields: dict[str, Any] = {
        "program": "openrlhf",
        "model": "m",
        "advantage": "grpo",
        "reward_url": "http://h/get_reward",
        "lr": 5e-7,
        "kl_in_loss": True,
        "max_prompt_tokens": 100,
        "max_response_tokens": 28,
    }
    new, old = build(**fields), build(**fields, flags="flat")
    assert new[:3] == old[:3] == ("python3", "-m", "openrlhf.cli.train_ppo_ray")
    assert value(new, "--algo.advantage.estimator") == value(old, "--advantage_estimator") == "group_norm"
    assert value(new, "--actor.adam.lr") == value(old, "--actor_learning_rate") == "5e-07"
    assert "--algo.kl.use_loss" in new and "--use_kl_loss" in old
    assert value(new, "--data.max_len") == "128" and value(old, "--prompt_max_len") == "100"
    assert value(old, "--generate_max_len") == "28"
    # Two nodes of eight, all shared: the actor on all, an engine on each GPU, no critic, no reward model.
    assert (value(new, "--actor.num_nodes"), value(new, "--actor.num_gpus_per_node")) == ("2", "8")
    assert value(new, "--vllm.num_engines") == "16"
    assert not [word for word in new if word.startswith(("--critic.", "--reward.num"))]


def test_openrlhf_splits_the_gpus_by_pairs() -> None:
    argv = build(
        program="openrlhf",
        colocate="pairs",
        advantage="gae",
        reward_model="rm",
        gpus={"actor": 4, "critic": 4},
        engines=4,
        tensor_parallel=2,
    )
    assert {value(argv, f"--{role}.num_gpus_per_node") for role in ("actor", "ref", "critic", "reward")} == {"4"}
    assert "--train.colocate_actor_ref" in argv and "--train.colocate_critic_reward" in argv
    with pytest.raises(ConfigError, match=r"must fit the 16 GPUs of 2 x 8; got 18 needed"):
        build(program="openrlhf", colocate="pairs", reward_model="rm", gpus={"actor": 5, "critic": 5}, engines=8)
    with pytest.raises(ConfigError, match=r"gpus\.actor must be a multiple of cluster\.gpus_per_node = 8"):
        build(program="openrlhf", reward_url="u", advantage="grpo", gpus={"actor": 12})


@pytest.mark.parametrize(("nodes", "quarter"), [(1, 2), (2, 4), (4, 8)])
def test_openrlhf_gets_its_shares_of_what_there_is(nodes: int, quarter: int) -> None:
    fields: dict[str, Any] = {"program": "openrlhf", "colocate": "pairs", "reward_model": "rm", "tensor_parallel": 2}
    argv = build(again(nodes=nodes, resume=False), **fields, advantage="gae")
    assert {value(argv, f"--{role}.num_gpus_per_node") for role in ("actor", "ref", "critic", "reward")} == {
        str(quarter)
    }
    assert value(argv, "--vllm.num_engines") == str(quarter)


def test_verl_counts_a_batch_in_prompts() -> None:
    argv = build(program="verl", advantage="grpo", samples_per_prompt=4, train_batch_size=128, micro_batch_size=2)
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=32" in argv
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=8", "algorithm.adv_estimator=grpo"} <= set(argv)
    assert not [word for word in argv if word.startswith("critic.")]
    with pytest.raises(ConfigError, match=r"multiple of samples_per_prompt.*got 10 and 4.*train_batch_size=8"):
        build(program="verl", samples_per_prompt=4, train_batch_size=10)


def test_verl_puts_kl_into_the_loss_or_the_reward() -> None:
    loss = build(program="verl", kl_coefficient=0.001, kl_in_loss=True, kl_estimator="k3")
    reward = build(program="verl", kl_coefficient=0.001)
    actor = "actor_rollout_ref.actor"
    assert {f"{actor}.use_kl_loss=True", f"{actor}.kl_loss_coef=0.001", f"{actor}.kl_loss_type=low_var_kl"} <= set(loss)
    assert {"algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.001"} <= set(reward)
    assert f"{actor}.use_kl_loss=True" not in reward
    with pytest.raises(ConfigError, match="verl has no KL by default"):
        build(program="verl", kl_in_loss=True)


def test_maxtext_in_both_styles() -> None:
    fields: dict[str, Any] = {"program": "maxtext", "model": "llama3.1-70b", "policy_loss": "gspo"}
    assert "rl.loss_algo=gspo-token" in build(**fields)
    assert "loss_algo=gspo-token" in build(**fields, flags="flat")
    assert {"run_name=r1", "base_output_directory=/run/ckpt", "model_name=llama3.1-70b"} <= set(build(**fields))


def test_a_command_is_run_as_given() -> None:
    words = ("python3", "my.py", "--lr", "1e-6", "a b", "x=$HOME")
    assert build(program="command", argv=words) == words
    with pytest.raises(ConfigError, match=r"external\.lr must be null for command"):
        build(program="command", argv=words, lr=1e-6)
    with pytest.raises(ValidationError, match="argv must name a program"):
        ExternalConfig()


@pytest.mark.parametrize(
    ("program", "first", "later"),
    [
        ("openrlhf", None, "--ckpt.load_enable"),
        ("verl", "trainer.resume_mode=disable", "trainer.resume_mode=auto"),
    ],
)
def test_a_later_attempt_resumes(program: str, first: str | None, later: str) -> None:
    fields: dict[str, Any] = {"program": program, "advantage": "grpo"}
    assert later in build(again(), **fields) and later not in build(**fields)
    assert first is None or first in build(**fields)


def test_own_settings_pass_through_over_ours() -> None:
    args = {"ds.packing_samples": True, "actor.adam.lr": 1e-5, "ds.zero_stage": None, "critic.adam.betas": [0.9, 0.95]}
    argv = build(program="openrlhf", lr=5e-7, zero_stage=3, args=args, argv=["--use_ms"])
    assert "--ds.packing_samples" in argv and argv[-1] == "--use_ms"
    assert value(argv, "--actor.adam.lr") == "1e-05" and "--ds.zero_stage" not in argv
    at = argv.index("--critic.adam.betas")
    assert argv[at + 1 : at + 3] == ("0.9", "0.95")
    odd = build(program="verl", args={"+a.b": "x y,{z}", "c": [1, "d"], "e": False, "f": 'say "it"'})
    assert odd[-4:] == ('+a.b="x y,{z}"', "c=[1,d]", "e=False", 'f="say \\"it\\""')


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"program": "verl", "label_key": "answer"}, r"external\.label_key must be null for verl"),
        ({"program": "maxtext", "critic_lr": 1e-5}, r"external\.critic_lr must be null for maxtext"),
        ({"program": "openrlhf", "method": "dpo", "temperature": 1.0}, r"null for openrlhf \(dpo\)"),
        ({"program": "verl", "advantage": "dr_grpo"}, "must be one of gae, grpo, rloo"),
        ({"program": "maxtext", "advantage": "gae"}, "must be one of grpo for maxtext"),
        ({"program": "openrlhf", "flags": "flat", "policy_loss": "gspo"}, "must be one of ppo"),
        ({"program": "openrlhf", "max_prompt_tokens": 8}, r"max_response_tokens must be set"),
    ],
)
def test_a_field_without_an_argument_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"program": "openrlhf", "args": {"logger.wandb.key": "canary"}},
        {"program": "openrlhf", "flags": "flat", "args": {"use_wandb": "canary"}},
        {"program": "maxtext", "args": {"hf_access_token": "canary"}},
        {"program": "maxtext", "argv": ["hf_access_token=canary"]},
        {"program": "command", "argv": ["x", "--use_wandb", "canary"]},
    ],
)
def test_a_secret_is_no_argument(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="every user of a node can read command lines") as caught:
        build(**fields)
    assert "canary" not in str(caught.value)


def test_wandb_is_switched_on_without_its_key() -> None:
    argv = build(program="openrlhf", wandb_project="p")
    assert value(argv, "--logger.wandb.key") == "from-environment" and value(argv, "--logger.wandb.project") == "p"
    assert "trainer.logger=[console,wandb]" in build(program="verl", wandb_project="p")
    assert "trainer.logger=[console]" in build(program="verl")
