"""Reward services on the nodes that the plan names: each stands beside a Ray actor, which watches it there."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import TrainingError
from slurm_rl.rewards.client import RewardClient
from slurm_rl.rewards.scorer import Scorer, open_scorer
from slurm_rl.rewards.supervise import RewardServices, choose_ports
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, Cluster, name_failure

_ANSWER_S = 30.0
"""For an actor that has nothing to do but to answer; for the services behind it to end."""
_LATE_S = 90.0
"""Beyond reward.start_timeout_s, after which the actor says itself why its service is not up."""


class ServiceHost:
    """One reward service, started and watched on its node. Runs as a Ray actor.

    Args:
        config: what the service scores with.
        token: that its clients know.
        index: of the service, in the names of its log.
    """

    def __init__(self, config: RewardConfig, token: str, run_dir: Path, attempt: int, index: int) -> None:
        alone = config.service.model_copy(update={"num_replicas": 1})
        run = RunDir(run_dir)
        self._stack = ExitStack()
        # Of this node, mode 0700.
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="reward-"))
        self._services = RewardServices(
            config.model_copy(update={"service": alone}),
            Path(folder),
            run.attempt(attempt).logs,
            host=_own_address(),
            ports=choose_ports(os.environ),
            report=functools.partial(append_event, run),
            token=token,
            first=index,
        )

    def start(self) -> str:
        """Its address, once it answers; RewardError when it does not in time."""
        return self._stack.enter_context(self._services).urls[0]

    def check(self) -> None:
        """Raise RewardError, with the end of its log, when it was given up."""
        self._services.check()

    def close(self) -> None:
        """End it."""
        self._stack.close()


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


@contextmanager
def open_rewards(cluster: Cluster, config: RewardConfig, run: RunDir, attempt: AttemptDir) -> Iterator[Scorer]:
    """What scores: on nodes of its own where the plan has such, else beside the trainer.

    Raises:
        RewardError: a service was not up in time, or has been given up.
        TrainingError: a node with a service is gone.
    """
    report = functools.partial(append_event, run)
    if not config.num_placed:
        with open_scorer(config, run.secrets, attempt.logs, cluster.nodes.host(), report) as scorer:
            yield scorer
        return
    token = secrets.token_hex(16)
    hosts = [
        cluster.place(actor, ServiceHost, config, token, run.path, attempt.number, actor.index)
        for actor in cluster.plan.actors
        if actor.role == "reward"
    ]
    calls = [(host, host.handle.start.remote()) for host in hosts]
    timeout_s = config.start_timeout_s + _LATE_S
    urls = cluster.gather(calls, timeout_s=timeout_s, what="starting the reward services")
    report("reward/services_ready", urls=urls)
    check = functools.partial(_check, hosts)
    with RewardClient(config.service, lambda: urls, token, check) as client:
        try:
            yield client
        finally:
            _close(hosts)


def _check(hosts: list[Actor]) -> None:
    """Of any thread of the client's, before it asks again."""
    import ray

    calls = [(host, host.handle.check.remote()) for host in hosts]
    for host, reference in calls:
        what = "asking after its reward service"
        try:
            ray.get(reference, timeout=_ANSWER_S)
        except ray.exceptions.GetTimeoutError:
            raise TrainingError(f"{host.name} must answer within {_ANSWER_S:g} s", seen="nothing") from None
        except ray.exceptions.RayError as error:
            raise name_failure(error, host.name, what) from None


def _close(hosts: list[Actor]) -> None:
    """In order where they still answer; what does not is ended with its actor."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait([host.handle.close.remote() for host in hosts], num_returns=len(hosts), timeout=_ANSWER_S)
