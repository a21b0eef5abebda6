import itertools
from pathlib import Path

import pytest
import yaml

from slurm_rl.__main__ import main
from slurm_rl.config.load import load_config, open_hydra
from slurm_rl.config.overrides import GROUPS, normalise_words
from slurm_rl.config.parse import parse_config
from slurm_rl.config.preset_folders import conf_dir
from slurm_rl.errors import ConfigError
from slurm_rl.launch.sweep.sweeper import Composer

WORDS = ["+exp=grpo_mathv60k", "+cluster=amd_mi300", "algorithm=dapo", "+network=ib", "cluster.num_nodes=2"]
OWN = ["model=hf", "model.path=Qwen/Qwen3-4B", "+data=gsm8k", "reward=math"]


def test_groups_match_config_yaml() -> None:
    listed = yaml.safe_load((conf_dir() / "config.yaml").read_text())["defaults"]
    assert tuple(name for entry in listed if isinstance(entry, dict) for name in entry) == GROUPS
    assert {path.parent.name for path in conf_dir().glob("*/*.yaml")} == set(GROUPS)


def test_overrides_compose_in_any_order_without_plus() -> None:
    config = load_config(WORDS)
    for order in list(itertools.permutations(WORDS))[::40]:
        assert load_config([word.removeprefix("+") for word in order]) == load_config(order) == config
    with open_hydra(None) as extra:
        assert parse_config(Composer(extra).compose(normalise_words(WORDS)), is_run=True) == config


def test_user_overrides_win_over_experiment() -> None:
    config = load_config(WORDS)
    assert config.algorithm.dynamic_sampling_rounds == 4 and config.algorithm.kl.coef == 0
    assert config.cluster.network_interface == "ib0"
    assert load_config(["reward=math", "+exp=grpo_mathv60k", "+cluster=amd_mi300"]).reward.verifiers == {"math": 1.0}
    assert load_config(["network=ib", "+exp=demo", "+cluster=runpod"]).cluster.network_interface == "ib0"
    assert load_config(["+exp=demo", "model=tiny_qwen2_5_vl"]).model.from_config == "tiny_qwen2_5_vl"


def test_repeated_group_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"data must be chosen once; got data=gsm8k and data=math.*data=\[gsm8k,math\]"
    ):
        load_config(["+data=gsm8k", "data=math"])


def test_own_run_has_no_demo_settings() -> None:
    config = load_config([*OWN, "+cluster=nvidia_h100"])
    assert (config.name, config.optim.lr, config.warmup.num_steps) == ("run", 1e-6, 0)
    assert (config.rollout.max_tokens, config.algorithm.clip_ratio_high, config.optim.schedule) == (
        1024,
        0.2,
        "constant",
    )
    assert config.reward.verifiers == {"math": 1.0}
    assert config == load_config([word for word in [*OWN, "+cluster=nvidia_h100"] if word != "model=hf"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "model.path, data.train and a reward"),
        (["model.path=a", "+data=gsm8k"], "must be given a reward"),
        (["task=sft", "model.path=a"], "must be given data.train"),
        (["+exp=ppo_llama3_8b", "+cluster=nvidia_h100"], "reward.model.path"),
        (["+exp=sft_llama3_8b", "+cluster=nvidia_h100"], "must be given model.path"),
    ],
)
def test_missing_keys_are_named_together(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and "Next: " in error and "Traceback" not in error


def test_plan_without_overrides_is_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    assert "runs/addition-" in capsys.readouterr().out


def test_dtype_auto_follows_accelerator_and_is_saved() -> None:
    config = load_config([*OWN, "+cluster=amd_mi300"])
    assert (config.model.dtype, config.model.gradient_checkpointing) == ("bfloat16", "auto")
    saved = config.model_dump(mode="json")
    assert saved["model"]["dtype"] == "bfloat16"
    assert parse_config(saved) == config
    here = load_config(OWN)
    assert (here.model.dtype, here.model.gradient_checkpointing) == ("float32", "auto")
    assert load_config([*OWN, "+cluster=amd_mi300", "model.dtype=float32"]).model.dtype == "float32"


def test_preset_that_overrides_group_names_syntax() -> None:
    from slurm_rl.config.compose_errors import explain_compose_error

    error = explain_compose_error(ValueError("In 'exp/mine': Could not override 'model'. No match in the defaults"))
    assert "/model/<name>" in str(error)
