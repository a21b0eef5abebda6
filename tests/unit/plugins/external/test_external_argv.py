from typing import Any

import pytest
from pydantic import ValidationError

from slurm_rl.config.external import ExternalConfig
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.external_argv import RunValues, build_external_argv

RUN = RunValues(nodes=2, gpus_per_node=8, checkpoints="/run/ckpt", export="/run/out")
PRESETS = ["openrlhf", "openrlhf_flat", "verl", "maxtext"]


def build(run: RunValues = RUN, **fields: Any) -> list[str]:
    """Return the arguments of a later attempt."""
    config = ExternalConfig.model_validate({"argv": ["program"], **fields})
    first, *words = build_external_argv(config, run, resume=True)
    assert first == config.argv[0]
    return words


def compose(*words: str, run: RunValues = RUN, resume: bool = False) -> list[str]:
    config = load_config(["+cluster=nvidia_a100", *words])
    assert config.external is not None
    return list(build_external_argv(config.external, run, resume=resume))


def test_arguments_are_written_as_flags_or_overrides() -> None:
    args = {"a": {"b": 5e-7, "c": True, "d": False}, "e": [0.9, "x"], "f": None, "g": "x y"}
    assert build(args=args) == ["--a.b", "5e-07", "--a.c", "--e", "0.9", "x", "--g", "x y"]
    assert build(args=args, style="overrides") == ["a.b=5e-07", "a.c=True", "a.d=False", "e=[0.9,x]", 'g="x y"']
    odd = {"+a": {"b": "x y,{z}"}, "f": 'say "it"'}
    assert build(args=odd, style="overrides") == ['+a.b="x y,{z}"', 'f="say \\"it\\""']


def test_plan_fills_in_planned_values() -> None:
    args = {"n": "${plan:nodes}", "g": "${plan:gpus}", "c": "file://${plan:checkpoints}/x", "l": ["${plan:export}", 1]}
    assert build(args=args, style="overrides") == ["n=2", "g=16", 'c="file:///run/ckpt/x"', "l=[/run/out,1]"]
    config = ExternalConfig(argv=("torchrun", "--nproc-per-node=${plan:gpus_per_node}"))
    assert build_external_argv(config, RUN, resume=False) == ("torchrun", "--nproc-per-node=8")


@pytest.mark.parametrize(
    ("nodes", "quarter"), [(1, ["1", "2", "2"]), (2, ["1", "4", "4"]), (4, ["1", "8", "8"]), (8, ["2", "8", "16"])]
)
def test_part_of_gpus_is_within_node_or_full_nodes(nodes: int, quarter: list[str]) -> None:
    args = {name: f"${{plan:{name},4}}" for name in ("nodes", "gpus_per_node", "gpus")}
    run = RunValues(nodes=nodes, gpus_per_node=8, checkpoints="", export="")
    assert build(run, args=args)[1::2] == quarter


@pytest.mark.parametrize(("nodes", "gpus_per_node"), [(1, 2), (3, 2), (6, 8)])
def test_indivisible_gpus_are_refused_with_both_numbers(nodes: int, gpus_per_node: int) -> None:
    run = RunValues(nodes=nodes, gpus_per_node=gpus_per_node, checkpoints="", export="")
    with pytest.raises(ConfigError, match=rf"{nodes} x {gpus_per_node} GPUs must divide into 4 equal parts"):
        build(run, args={"a": "${plan:gpus,4}"})


def test_cluster_without_gpus_has_no_parts() -> None:
    run = RunValues(nodes=4, gpus_per_node=0, checkpoints="", export="")
    assert build(run, args={"n": "${plan:nodes,4}", "g": "${plan:gpus,4}"}, style="overrides") == ["n=1", "g=0"]


@pytest.mark.parametrize(
    "text", ["${plan:gpu}", "${plan:}", "${plan:checkpoints,4}", "${plan:gpus,0}", "${plan:gpus,x}"]
)
def test_unknown_placeholder_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must ask for nodes, .* got \$\{plan:"):
        build(args={"a": text})


@pytest.mark.parametrize("preset", PRESETS)
def test_override_reaches_set_and_unset_arguments(preset: str) -> None:
    before = compose(f"external={preset}", "external.args.no.such_flag=3")
    assert {"--no.such_flag", "no.such_flag=3"} & set(before)
    # The presets set everything that the run needs.
    assert any("/run/ckpt" in word for word in before)


def test_override_wins_over_preset() -> None:
    words = ["exp=openrlhf_ppo_llama3_8b", "external.args.actor.adam.lr=1e-3", "external.args.ds.zero_stage=null"]
    argv = compose(*words, "external.model=org/m", "external.args.actor.num_nodes=1")
    assert argv[argv.index("--actor.adam.lr") + 1] == "0.001" and "5e-07" not in argv
    assert "--ds.zero_stage" not in argv and argv[argv.index("--actor.model_name_or_path") + 1] == "org/m"
    assert argv.count("--actor.num_nodes") == 1


@pytest.mark.parametrize(
    ("preset", "first", "later"),
    [
        ("openrlhf", None, "--ckpt.load_enable"),
        ("openrlhf_flat", None, "--load_checkpoint"),
        ("verl", "trainer.resume_mode=disable", "trainer.resume_mode=resume_path"),
    ],
)
def test_later_attempt_resumes(preset: str, first: str | None, later: str) -> None:
    argv, again = compose(f"external={preset}"), compose(f"external={preset}", resume=True)
    assert later in again and later not in argv
    assert first is None or (first in argv and first not in again)


def test_later_attempt_names_checkpoint() -> None:
    (path,) = [word for word in compose("external=verl", resume=True) if "resume_from_path" in word]
    assert path == 'trainer.resume_from_path="/run/ckpt/${checkpoint:name}"'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"args": {"a": "${checkpoint:name}"}, "layout": "trl"},
            "is allowed only in external.resume.* got external.args",
        ),
        (
            {"argv": ["x", "${checkpoint:name}"], "layout": "trl"},
            "is allowed only in external.resume.* got external.argv",
        ),
        ({"resume": {"a": "${checkpoint:name}"}}, "external.layout must be set"),
        ({"resume": {"a": ["b", "${checkpoint:path}"]}, "layout": "trl"}, "must be name or step; got path"),
    ],
)
def test_unfillable_checkpoint_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**fields)


def test_command_is_run_unchanged() -> None:
    words = ["my.py", "--lr", "1e-6", "a b", "x=$HOME", "f'{name}'"]
    assert build(argv=["python3", *words]) == words
    with pytest.raises(ValidationError, match="argv"):
        ExternalConfig.model_validate({"argv": []})


def test_argument_in_dotted_and_nested_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be given once.*got a\.b, with dots and as a tree"):
        build(args={"a.b": 1, "a": {"b": 2}})


def test_key_of_former_mapping_names_new_place() -> None:
    with pytest.raises(ConfigError, match=r"own names; got external\.lr\. Next: external\.args\.<name>=<value>"):
        load_config(["+cluster=nvidia_a100", "exp=verl_ppo_gsm8k", "external.lr=1e-6"])
    with pytest.raises(ConfigError, match=r"own names; got external\.program\. Next: external\.args"):
        load_config(["+cluster=nvidia_a100", "external=verl", "+external.program=verl"])


def test_task_has_own_section_only() -> None:
    with pytest.raises(ConfigError, match=r"got task=verl with none\. Next: external=verl"):
        load_config(["task=verl"])
    with pytest.raises(ConfigError, match=r"got task=grpo with one\. Next: task=command"):
        load_config(["external=verl", "task=grpo"])


def test_torchrun_without_ray_takes_one_node() -> None:
    with pytest.raises(ConfigError, match=r"num_nodes must be 1 for torchrun --standalone.* got 2.*external\.start"):
        build(argv=["torchrun", "--standalone", "my.py"])


@pytest.mark.parametrize(
    "fields",
    [
        {"args": {"logger": {"wandb": {"key": "canary"}}}},
        {"args": {"use_wandb": "canary"}},
        {"resume": {"use_wandb": "canary"}},
        {"args": {"hf_access_token": "canary"}, "style": "overrides"},
        {"argv": ["x", "hf_access_token=canary"]},
        {"argv": ["x", "--use_wandb", "canary"]},
    ],
)
def test_secret_is_not_argument(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="every user of a node can read command lines") as caught:
        build(**fields)
    assert "canary" not in str(caught.value)
