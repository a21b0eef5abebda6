"""Reward services on the nodes of the plan, each supervised by a Ray actor on its node."""

import functools
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.user_files.load import load_function
from slurm_rl.errors import TrainingError
from slurm_rl.rewards.scorer import Scorer, open_scorer
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, Cluster, close_actors, name_failure
from slurm_rl.workers.ray_nodes import find_address

_ANSWER_S = 30.0
"""Seconds for an actor to answer; seconds for its services to stop."""
_LATE_S = 90.0
"""Seconds beyond reward.start_timeout_s, after which the actor itself reports the cause."""


class ServiceHost:
    """Supervisor of one reward service on its node; a Ray actor.

    Args:
        config: reward config of the service.
        token: token that clients must send.
        index: number of the service, in the name of its log.
    """

    def __init__(self, config: RewardConfig, token: str, run_dir: Path, attempt: int, index: int) -> None:
        from slurm_rl.rewards.supervise import RewardServices, choose_ports

        alone = config.service.model_copy(update={"num_replicas": 1})
        run = RunDir(run_dir)
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="reward-"))
        self._services = RewardServices(
            config.model_copy(update={"service": alone}),
            Path(folder),
            run.attempt(attempt).logs,
            host=find_address()[0],
            ports=choose_ports(os.environ),
            report=functools.partial(append_event, run),
            token=token,
            first=index,
        )

    def start(self) -> str:
        """Return its address once it answers; raise RewardError after the deadline."""
        return self._stack.enter_context(self._services).urls[0]

    def check(self) -> None:
        """Raise RewardError with the end of its log if the service was abandoned."""
        self._services.check()

    def close(self) -> None:
        """Stop the service."""
        self._stack.close()


@contextmanager
def open_rewards(cluster: Cluster, config: RewardConfig, run: RunDir, attempt: AttemptDir) -> Iterator[Scorer]:
    """Open the scorer, on its own nodes if the plan has such, otherwise on the trainer's node.

    Raises:
        RewardError: a service was not ready in time, or was abandoned.
        TrainingError: a node with a service was lost.
    """

    from slurm_rl.rewards.client import RewardClient

    report = functools.partial(append_event, run)
    if config.judge.is_on:
        with load_function("slurm_rl.plugins.judge.scorer:open_judge")(config.judge, run) as scorer:
            yield scorer
        return
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
            close_actors(hosts, _ANSWER_S)


def _check(hosts: list[Actor]) -> None:
    """Check the services before a retry; called from any thread of the client."""
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
