"""Reward services, or servers of a judge, on the nodes of the plan, each supervised by a Ray actor on its node."""

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
from slurm_rl.plan.job import ActorPlan
from slurm_rl.rewards.scorer import Scorer, open_scorer
from slurm_rl.run_dir.run_dir import AttemptDir, RunDir, append_event
from slurm_rl.workers.ray_driver import Actor, Cluster, close_actors, name_failure
from slurm_rl.workers.ray_nodes import find_address

_JUDGED = "slurm_rl.plugins.judge.mixture:open_judged_reward"
_PROGRAM = "slurm_rl.plugins.judge.server:build_program"
_ANSWER_S = 30.0
"""Seconds for an actor to answer; seconds for its services to stop."""
_LATE_S = 90.0
"""Seconds beyond reward.start_timeout_s, after which the actor itself reports the cause."""


class ServiceHost:
    """Supervisor of one reward service on its node; a Ray actor.

    Args:
        config: reward config of the service.
        token: token that clients must send.
        actor: index and GPUs of the service.
    """

    def __init__(self, config: RewardConfig, token: str, run_dir: Path, attempt: int, actor: ActorPlan) -> None:
        from slurm_rl.rewards.supervise import RewardServices, choose_ports

        server = config.judge.server
        program = load_function(_PROGRAM)(server, token, len(actor.gpus)) if server.model is not None else None
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
            first=actor.index,
            program=program,
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
    open_here = functools.partial(open_scorer, config, run.secrets, attempt.logs, cluster.nodes.host(), report)
    if not config.num_placed:
        with load_function(_JUDGED)(config, run, open_here) if config.judge.is_on else open_here() as scorer:
            yield scorer
        return
    token = secrets.token_hex(16)
    hosts = [
        cluster.place(actor, ServiceHost, config, token, run.path, attempt.number, actor)
        for actor in cluster.plan.actors
        if actor.role == "reward"
    ]
    calls = [(host, host.handle.start.remote()) for host in hosts]
    timeout_s = (config.judge.server.start_timeout_s if config.judge.is_on else config.start_timeout_s) + _LATE_S
    urls = cluster.gather(calls, timeout_s=timeout_s, what="starting the reward services")
    report("reward/services_ready", urls=urls)
    check = functools.partial(_check, hosts)
    judged = load_function(_JUDGED)(config, run, open_here, urls, token, check) if config.judge.is_on else None
    with judged or RewardClient(config.service, lambda: urls, token, check) as scorer:
        try:
            yield scorer
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
