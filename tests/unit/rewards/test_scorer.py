from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.scorer import open_scorer
from tests.unit.rewards.service_kit import Answer, scripted_server

ITEMS = [RewardItem(prompt="3+4=", completion=text, answer="7") for text in ("7", "8", "7")]


def score(
    config: RewardConfig, tmp_path: Path, host: str = "127.0.0.1"
) -> tuple[type, list[Any], list[dict[str, Any]]]:
    """Return the scorer's name, the rewards and the events."""
    events: list[dict[str, Any]] = []
    with open_scorer(config, tmp_path, tmp_path, host, lambda kind, **fields: events.append(fields)) as scorer:
        return type(scorer), [result.value for result in scorer.score(ITEMS)], events


def test_trainers_own_workers_score_by_default(tmp_path: Path) -> None:
    assert score(RewardConfig(verifiers={"arithmetic": 1.0}), tmp_path) == (RewardPool, [1.0, 0.0, 1.0], [])


def test_own_service_listens_on_planned_address(tmp_path: Path) -> None:
    config = RewardConfig.model_validate(
        {"verifiers": {"arithmetic": 1.0}, "service": {"enabled": True, "address": "cluster"}}
    )
    kind, values, events = score(config, tmp_path, host="127.0.0.2")
    assert (kind, values) == (RewardClient, [1.0, 0.0, 1.0])
    assert events[-1]["urls"][0].startswith("http://127.0.0.2:")


def openrlhf_server(tree: dict[str, Any]) -> Answer:
    """Answer like OpenRLHF-M's math_verifier."""
    right = [float(q == p + a) for q, p, a in zip(tree["query"], tree["prompts"], tree["labels"], strict=True)]
    return 200, {"rewards": [1.5 * r for r in right], "format_rewards": right, "acc_rewards": right}


def test_external_services_score_and_keep_extra_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_RL_REWARD_TOKEN", raising=False)
    with scripted_server(openrlhf_server) as a, scripted_server(openrlhf_server) as b:
        config = RewardConfig(url=f"{a},{b}")
        assert score(config, tmp_path) == (RewardClient, [1.5, 0.0, 1.5], [])
        with open_scorer(config, tmp_path, tmp_path, "", lambda kind: None) as scorer:
            assert scorer.score(ITEMS)[0].parts == {"format_rewards": 1.0, "acc_rewards": 1.0}


def test_token_of_external_service_is_read_from_private_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    token.chmod(0o644)
    config = RewardConfig.model_validate({"url": "http://127.0.0.1:9/x", "service": {"token_file": str(token)}})
    with pytest.raises(ConfigError, match="the token file must be readable only by its owner"):
        score(config, tmp_path)
