import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardModelConfig
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.launch.runs.model_checks import check_reward_model

ONE = {"id2label": {"0": "LABEL_0"}}


def write_model(folder: Path, tree: dict[str, Any], template: str | None = None) -> str:
    (folder / "config.json").write_text(json.dumps(tree))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return str(folder)


def check(path: str, chat_template: bool | None = None, **fields: Any) -> None:
    check_reward_model(RewardModelConfig(path=path, **fields), chat_template)


@pytest.mark.parametrize(
    ("tree", "chats", "fields", "says"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, None, {}, "one output; got 2 in"),
        ({"architectures": ["Qwen3ForCausalLM"]}, None, {}, "one output; got 2 in"),
        (ONE, None, {"normalize": True}, "needs mean and std > 0 .*mean=None, std=None"),
        (ONE | {"mean": 0.5, "std": 0.0}, None, {"normalize": True}, "std=0.0"),
        (ONE, True, {}, "without a template"),
    ],
)
def test_unscorable_reward_model_is_refused(
    tree: dict[str, Any], chats: bool | None, fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check(write_model(tmp_path, tree), chats, **fields)
    assert caught.value.exit_code == 2


def test_text_model_is_refused_chats(tmp_path: Path) -> None:
    path = write_model(tmp_path, ONE | {"scores_chats": False}, template="{{ messages }}")
    with pytest.raises(ConfigError, match="trained on text"):
        check(path, True)
    check(path, False)


def test_scorable_or_remote_reward_model_passes(tmp_path: Path) -> None:
    tree = ONE | {"mean": 0.5, "std": 2.0, "scores_chats": True}
    check(write_model(tmp_path, tree, template="{{ messages }}"), True, normalize=True)
    check("org/name", True, normalize=True)


def test_start_checks_include_reward_model(tmp_path: Path) -> None:
    path = write_model(tmp_path, {"num_labels": 3})
    with pytest.raises(ConfigError, match="one output; got 3"):
        check_inputs(load_config(["+exp=demo", f"reward.model.path={path}"]), print)
