"""Select how a run scores: worker processes of the trainer, its own services, or external services.

reward.verifiers, reward.function        RewardPool
reward.service.enabled=true              RewardServices with a RewardClient
reward.url=http://host:5000/get_reward   RewardClient
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from slurm_rl.config.reward import RewardConfig, split_urls
from slurm_rl.rewards.results import RewardItem, RewardResult


class Scorer(Protocol):
    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        """Return one result per item, in order and in bounded time."""


@contextmanager
def open_scorer(
    config: RewardConfig, folder: Path, logs: Path, cluster_host: str, report: Callable[..., None]
) -> Iterator[Scorer]:
    """Start the scorer, and stop it afterwards.

    Args:
        folder: mode 0700; receives the token of the run's services.
        cluster_host: address of this node for other nodes.
        report: called with events and their fields.
    """

    from slurm_rl.rewards.client import RewardClient
    from slurm_rl.rewards.pool import RewardPool
    from slurm_rl.rewards.sandbox.runs import probe_sandbox
    from slurm_rl.rewards.service import TOKEN_VARIABLE, read_token
    from slurm_rl.rewards.supervise import RewardServices, choose_ports

    if config.url is None and config.function is None and "code" in config.verifiers:
        report("reward/sandbox", **probe_sandbox())
    if config.url is not None:
        urls = split_urls(config.url)
        file = config.service.token_file
        wants_token = file is not None or os.environ.get(TOKEN_VARIABLE)
        token = read_token(None if file is None else Path(file).expanduser()) if wants_token else None
        with RewardClient(config.service, lambda: urls, token) as client:
            yield client
    elif config.service.enabled:
        host = cluster_host if config.service.address == "cluster" else "127.0.0.1"
        ports = choose_ports(os.environ)
        with (
            RewardServices(config, folder, logs, host=host, ports=ports, report=report) as services,
            RewardClient(config.service, lambda: services.urls, services.token, services.check) as client,
        ):
            report("reward/services_ready", urls=services.urls)
            yield client
    else:
        with RewardPool(config) as pool:
            yield pool
