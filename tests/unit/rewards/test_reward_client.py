"""The reward client against foreign services that misbehave."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.rewards import client as client_module
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.pool import RewardPool
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.scorer import open_scorer
from tests.unit.rewards.service_kit import Answer, build_items, scripted_server


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client_module, "_LONGEST_PAUSE_S", 0.05)


def build_client(*urls: str, token: str | None = None, **options: Any) -> RewardClient:
    return RewardClient(RewardServiceConfig(**{"deadline_s": 20, **options}), lambda: urls, token)


def right(tree: dict[str, Any]) -> Answer:
    return 200, {"rewards": [float(label) for label in tree["labels"]], "words": [1.0] * len(tree["query"])}


def test_results_are_in_order_of_items() -> None:
    with scripted_server(right) as url, build_client(url, items_per_request=7) as client:
        results = client.score(build_items(100))
    assert [result.value for result in results] == list(range(100))
    assert all(result.parts == {"words": 1.0} for result in results)


def test_no_items_send_no_request() -> None:
    with build_client("http://127.0.0.1:9/none") as client:
        assert client.score([]) == []


def test_requests_are_balanced_over_replicas() -> None:
    seen: dict[str, list[int]] = {name: [] for name in "abc"}

    def count(name: str) -> Any:
        return lambda tree: seen[name].append(len(tree["query"])) or right(tree)

    with ExitStack() as stack:
        urls = [stack.enter_context(scripted_server(count(name))) for name in seen]
        client = stack.enter_context(build_client(*urls, items_per_request=10))
        for num_items, each in ((300, 100), (3, 101)):
            client.score(build_items(num_items))
            assert [sum(sizes) for sizes in seen.values()] == [each] * 3


@pytest.mark.parametrize(
    "answer",
    [(500, b"oops"), (503, b"busy"), (429, b"slow down"), (200, b"<html>"), (200, {"rewards": [1.0] * 99})],
    ids=["500", "503", "429", "html", "wrong length"],
)
def test_temporary_errors_are_retried(answer: Answer) -> None:
    told = iter([answer] * 3)

    def falter(tree: dict[str, Any]) -> Answer:
        return next(told, None) or right(tree)

    with scripted_server(falter) as url, build_client(url) as client:
        assert [result.value for result in client.score(build_items(5))] == [0, 1, 2, 3, 4]


def test_item_that_breaks_service_fails_only_itself() -> None:
    def choke(tree: dict[str, Any]) -> Answer:
        return (500, b"ValueError: answer 3") if "3" in tree["labels"] else right(tree)

    with scripted_server(choke) as url, build_client(url) as client:
        results = client.score(build_items(6))
    assert [result.failure for result in results] == [None, None, None, "service", None, None]
    assert "500 ValueError: answer 3" in results[3].detail


def test_dead_replica_is_replaced_by_live_one() -> None:
    with scripted_server(right) as url, build_client("http://127.0.0.1:9/get_reward", url) as client:
        assert [result.value for result in client.score(build_items(40))] == list(range(40))


def test_too_large_request_is_split() -> None:
    def small(tree: dict[str, Any]) -> Answer:
        return (413, b"too large") if len(tree["query"]) > 3 else right(tree)

    with scripted_server(small) as url, build_client(url) as client:
        assert [result.value for result in client.score(build_items(20))] == list(range(20))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((401, b"who are you"), "401 who are you.*check the token"),
        ((400, {"error": "queries fields are required"}), "400 .*fields are required"),
    ],
)
def test_permanent_errors_are_raised_at_once(answer: Answer, words: str) -> None:
    num_asked = 0

    def refuse(tree: dict[str, Any]) -> Answer:
        nonlocal num_asked
        num_asked += 1
        return answer

    with scripted_server(refuse) as url, build_client(url) as client, pytest.raises(RewardError, match=words):
        client.score(build_items(5))
    assert num_asked == 1


def test_score_of_rejected_row_fails_that_row_only() -> None:
    def reject(tree: dict[str, Any]) -> Answer:
        return (422, {"error": "the answer cannot be read"}) if "12" in tree["labels"] else right(tree)

    with scripted_server(reject) as url, build_client(url) as client:
        results = client.score(build_items(20))
    assert [result.value for result in results] == [None if i == 12 else i for i in range(20)]
    assert results[12].failure == "reference" and "422" in results[12].detail


def test_missing_service_ends_at_deadline_without_showing_password() -> None:
    url = "http://me:secret@127.0.0.1:9/get_reward"
    words = r"within reward.service.deadline_s = 0.3; got http://127.0.0.1:9/get_reward: ConnectError"
    with build_client(url, deadline_s=0.3) as client, pytest.raises(RewardError, match=words) as caught:
        client.score(build_items(5))
    assert "secret" not in str(caught.value)


def test_supervisor_may_end_wait() -> None:
    def gone() -> None:
        raise RewardError("the service was given up")

    client = RewardClient(RewardServiceConfig(), lambda: ["http://127.0.0.1:9/get_reward"], None, gone)
    with client, pytest.raises(RewardError, match="was given up"):
        client.score(build_items(1))


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
