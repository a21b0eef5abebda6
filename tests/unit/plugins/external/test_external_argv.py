from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from slurm_rl.config.external import ExternalConfig, LayoutName
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.plan.checkpoint_layouts import LAYOUTS, Found, newest_step_by_name
from slurm_rl.plan.external_argv import RunValues, build_external_argv, build_limit_words
from slurm_rl.plugins.external.verl_limit import SaveFrequency
from tests.unit.plugins.external.layout_files import half, whole, write

RUN = RunValues(nodes=2, gpus_per_node=8, checkpoints="/run/ckpt", export="/run/out")


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
    ("nodes", "gpus_per_node", "quarter"),
    [(1, 8, "1 2 2"), (2, 8, "1 4 4"), (4, 8, "1 8 8"), (8, 8, "2 8 16"), (4, 0, "1 0 0")],
)
def test_part_of_gpus_is_within_node_or_full_nodes(nodes: int, gpus_per_node: int, quarter: str) -> None:
    args = {name: f"${{plan:{name},4}}" for name in ("nodes", "gpus_per_node", "gpus")}
    run = RunValues(nodes=nodes, gpus_per_node=gpus_per_node, checkpoints="", export="")
    assert build(run, args=args, style="overrides") == [
        f"{name}={number}" for name, number in zip(args, quarter.split(), strict=True)
    ]


@pytest.mark.parametrize(("nodes", "gpus_per_node"), [(1, 2), (3, 2), (6, 8)])
def test_indivisible_gpus_are_refused_with_both_numbers(nodes: int, gpus_per_node: int) -> None:
    run = RunValues(nodes=nodes, gpus_per_node=gpus_per_node, checkpoints="", export="")
    with pytest.raises(ConfigError, match=rf"{nodes} x {gpus_per_node} GPUs must divide into 4 equal parts"):
        build(run, args={"a": "${plan:gpus,4}"})


@pytest.mark.parametrize(
    "text", ["${plan:gpu}", "${plan:}", "${plan:checkpoints,4}", "${plan:gpus,0}", "${plan:gpus,x}"]
)
def test_unknown_placeholder_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must ask for nodes, .* got \$\{plan:"):
        build(args={"a": text})


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
    if first is not None:
        assert first in argv and first not in again
        assert 'trainer.resume_from_path="/run/ckpt/${checkpoint:name}"' in again


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"args": {"a": "${checkpoint:name}"}, "layout": "trl"}, "only in external.resume.* got external.args"),
        ({"argv": ["x", "${checkpoint:name}"], "layout": "trl"}, "only in external.resume.* got external.argv"),
        ({"resume": {"a": "${checkpoint:name}"}}, "external.layout must be set"),
        ({"args": {"a.b": 1, "a": {"b": 2}}}, r"must be given once.*got a\.b, with dots and as a tree"),
        ({"argv": ["torchrun", "--standalone"]}, r"num_nodes must be 1 for torchrun.* got 2.*external\.start"),
        ({"resume": {"a": ["b", "${checkpoint:path}"]}, "layout": "trl"}, "must be name or step; got path"),
    ],
)
def test_contradicting_arguments_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"args": {"a": "${limit:left}"}}, r"only in external\.before_limit.* got \$\{limit:left\}"),
        ({"argv": ["x", "${limit:left}"]}, r"only in external\.before_limit"),
        ({"before_limit": {"a": "${limit:left,x}"}}, r"must ask for \$\{limit:timestamp\}.* got \$\{limit:left,x\}"),
        ({"before_limit": {"wandb_key": "canary"}}, "every user of a node can read command lines"),
    ],
)
def test_wrong_limit_argument_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_limit_words(ExternalConfig.model_validate({"argv": ["x"], **fields}), RUN)


def test_own_argument_replaces_limit_argument_of_preset() -> None:
    config = load_config(["+cluster=nvidia_a100", "external=nemo_rl"]).external
    assert config is not None
    words = ('checkpointing.checkpoint_must_save_by="${limit:left,900}"',)
    assert build_limit_words(config, RUN) == words
    mine = "external.args.checkpointing.checkpoint_must_save_by=00:01:00:00"
    config = load_config(["+cluster=nvidia_a100", "external=nemo_rl", mine]).external
    assert config is not None and build_limit_words(config, RUN) == ()


def test_verl_callback_saves_every_step_close_to_end() -> None:
    """The end is at 100 s; verl's function asks for a minute and the longest step."""
    times = iter([0, 1, 11, 12, 17, 30, 31])
    clock = {"now": 0.0}

    def now() -> float:
        clock["now"] = float(next(times))
        return clock["now"]

    frequency = SaveFrequency(20, lambda longest_s: 100 - clock["now"] <= 60 + longest_s, now)
    assert [frequency() for _ in range(7)] == [20, 20, 20, 20, 20, 1, 1]


def test_command_is_run_unchanged() -> None:
    words = ["my.py", "--lr", "1e-6", "a b", "x=$HOME", "f'{name}'"]
    assert build(argv=["python3", *words]) == words
    with pytest.raises(ValidationError, match="argv"):
        ExternalConfig.model_validate({"argv": []})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["exp=verl_ppo_gsm8k", "external.lr=1e-6"], r"got external\.lr\. Next: external\.args\.<name>=<value>"),
        (["external=verl", "+external.program=verl"], r"got external\.program\. Next: external\.args"),
        (["task=verl"], r"got task=verl with none\. Next: external=verl"),
        (["external=verl", "task=grpo"], r"got task=grpo with one\. Next: task=command"),
    ],
)
def test_wrong_section_or_key_names_next_action(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(["+cluster=nvidia_a100", *words])


@pytest.mark.parametrize(
    "fields",
    [
        {"args": {"logger": {"wandb": {"key": "canary"}}}},
        {"args": {"hf_access_token": "canary"}, "style": "overrides"},
        {"argv": ["x", "hf_access_token=canary"]},
        {"argv": ["x", "--use_wandb", "canary"]},
    ],
)
def test_secret_is_not_argument(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="every user of a node can read command lines") as caught:
        build(**fields)
    assert "canary" not in str(caught.value)


# Checkpoints of other trainers; tests/train/external/test_layouts_sources.py checks the layouts.
def test_configurable_names_have_layouts() -> None:
    assert set(get_args(LayoutName)) == LAYOUTS.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_newest_complete_checkpoint_is_chosen(layout: str, tmp_path: Path) -> None:
    newest = LAYOUTS[layout].newest
    assert newest(tmp_path) is None, "an empty folder"
    assert newest(tmp_path / "absent") is None
    write(tmp_path, half(layout, 5))
    assert newest(tmp_path) is None, "killed in its first save"
    # 10 after 9: numeric order, not text order.
    for step in (5, 9, 10):
        write(tmp_path, whole(layout, step))
    write(tmp_path, half(layout, 15))
    found = newest(tmp_path)
    assert found is not None and found.step == 10 and (tmp_path / found.name).is_dir()


@pytest.mark.parametrize(
    ("layout", "change", "step"),
    [
        # The writer was killed between open and write of the tracker: verl's own `auto` fails.
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").write_text(""), 10),
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").unlink(), None),
        ("verl", lambda root: (root / "latest_checkpointed_iteration.txt").write_text("5\n"), 5),
        ("openrlhf", lambda root: (root / "_actor/latest").write_text("global_step5"), 5),
        ("trl", lambda root: (root / "checkpoint-10/trainer_state.json").write_text('{"global'), 5),
        ("trl", lambda root: (root / "checkpoint-10/checkpoint-is-incomplete.txt").write_text("at step 10"), 5),
        ("prime_rl", lambda root: (root / "run/checkpoints/step_10/orchestrator/progress.pt").unlink(), 5),
        ("skyrl", lambda root: (root / "latest_ckpt_global_step.txt").write_text(""), 10),
        ("slime", lambda root: (root / "latest_checkpointed_iteration.txt").write_text("5"), 5),
        ("torchtitan", lambda root: (root / "checkpoint/step-10/.metadata").unlink(), 5),
        ("steps", lambda root: (root / "step-11").write_text("no folder"), 10),
    ],
)
def test_partial_and_copied_checkpoints_are_recognized(
    layout: str, change: Callable[[Path], object], step: int | None, tmp_path: Path
) -> None:
    for number in (5, 10):
        write(tmp_path, whole(layout, number))
    change(tmp_path)
    found = LAYOUTS[layout].newest(tmp_path)
    assert (found.step if found else None) == step


def test_openrlhf_single_model_layout_is_supported(tmp_path: Path) -> None:
    write(tmp_path, {"global_step4/x": "", "latest": "global_step4"})
    assert LAYOUTS["openrlhf"].newest(tmp_path) == Found("global_step4", 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_progress_counts_names_of_layouts(layout: str, tmp_path: Path) -> None:
    assert newest_step_by_name(tmp_path) == -1
    write(tmp_path, whole(layout, 7))
    write(tmp_path, {"other-9/x": "", "step-x/x": "", "checkpoint-12a/x": ""})
    assert newest_step_by_name(tmp_path) == 7
