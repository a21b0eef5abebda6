import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_rl.config.reward import RewardConfig, RewardServiceConfig
from slurm_rl.rewards.results import RewardItem
from slurm_rl.rewards.supervise import RewardServices
from tests.http_kit import serve_posts

ODD_FUNCTION = f"{Path(__file__).with_name('odd_function.py')}:reward_func"


def odd_config(**service: Any) -> RewardConfig:
    """Return a config with two workers that obey completions; an item's reward is its answer / 8."""
    return RewardConfig(num_workers=2, timeout_s=1.0, function=ODD_FUNCTION, service=RewardServiceConfig(**service))


def start_services(tmp_path: Path, config: RewardConfig, events: list[str] | None = None) -> RewardServices:
    def report(kind: str, **fields: Any) -> None:
        if events is not None:
            events.append(kind)

    return RewardServices(config, tmp_path / "secrets", tmp_path / "logs", report=report)


def build_items(count: int, deeds: dict[int, str] | None = None) -> list[RewardItem]:
    return [
        RewardItem(prompt=f"prompt {i}: ", completion=(deeds or {}).get(i, f"answer {i}"), answer=str(i))
        for i in range(count)
    ]


Answer = tuple[int, Any]
"""HTTP status and body: bytes unchanged, anything else as JSON."""


@contextmanager
def scripted_server(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[str]:
    """Serve scripted answers as a foreign reward service; yield its address."""

    def respond(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        status, tree = answer(json.loads(body))
        return status, {}, tree if isinstance(tree, bytes) else json.dumps(tree).encode()

    with serve_posts(respond) as url:
        yield f"{url}/get_reward"
