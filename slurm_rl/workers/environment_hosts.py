"""Environments on all nodes of a run: child processes of the trainer, and of a Ray actor on each other node."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from slurm_rl.config.environment import EnvironmentConfig
from slurm_rl.envs.environments import Environments
from slurm_rl.envs.facts import Facts
from slurm_rl.envs.pool import EnvironmentPool
from slurm_rl.envs.spread import HostLost, SpreadEnvironments
from slurm_rl.envs.steps import Answer
from slurm_rl.envs.worker import Call
from slurm_rl.errors import ConfigError
from slurm_rl.plan.job import ActorPlan
from slurm_rl.plan.placement import count_workers_by_node
from slurm_rl.workers.ray_driver import Actor, ActorLost, Cluster, close_actors, name_failure

_WAIT_S, _LINGER_S = 10.0, 0.01
_ANSWER_S = 60.0
"""Seconds for an idle actor to answer, in addition to the timeout of the call."""
_LATE_S = 90.0
"""Seconds beyond env.start_timeout_s, after which the actor itself reports the cause."""


class EnvironmentHost:
    """The environments of one node. Runs as a Ray actor with concurrent calls.

    Args:
        config: with the `num_workers` of this node.
        schemas: tool schemas of env.tools.
    """

    def __init__(self, config: EnvironmentConfig, schemas: Sequence[dict[str, Any]]) -> None:
        # Otherwise multiprocessing would import Ray's main module in each process.
        vars(sys.modules["__main__"]).pop("__file__", None)
        self._pool = EnvironmentPool(config, schemas)

    def start(self) -> Facts:
        """Return once the processes are up; raise the errors of EnvironmentPool."""
        self._pool.__enter__()
        return self._pool.facts

    def submit(self, calls: Sequence[Call], gone: Sequence[str]) -> None:
        self._pool.forget(gone)
        self._pool.submit(calls)

    def listen(self, wait_s: float, linger_s: float) -> list[Answer]:
        """Return answers; wait `wait_s` for the first, and `linger_s` for others."""
        deadline = time.monotonic() + wait_s
        while not (found := self._pool.listen(wait_s)) and time.monotonic() < deadline and not self._pool.is_closed:
            pass
        if found:
            time.sleep(linger_s)
            found += self._pool.listen(0.0)
        return found

    def close(self) -> None:
        self._pool.__exit__()


class HereHost:
    """`Host` of the trainer's node."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self.pool, self.name, self.num_workers = pool, "the trainer's node", pool.config.num_workers

    def submit(self, calls: Sequence[Call], gone: Sequence[str]) -> None:
        self.pool.forget(gone)
        self.pool.submit(calls)

    def listen(self) -> list[Answer]:
        return self.pool.listen(_WAIT_S)


class FarHost:
    """`Host` of another node."""

    def __init__(self, actor: Actor, num_workers: int) -> None:
        self.actor, self.name, self.num_workers = actor, actor.name, num_workers

    def submit(self, calls: Sequence[Call], gone: Sequence[str]) -> None:
        self._call("submit", _ANSWER_S, list(calls), list(gone))

    def listen(self) -> list[Answer]:
        found: list[Answer] = self._call("listen", _WAIT_S + _ANSWER_S, _WAIT_S, _LINGER_S)
        return found

    def _call(self, method: str, timeout_s: float, *args: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self.actor.handle, method).remote(*args), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            with contextlib.suppress(Exception):  # discard the results of its running calls
                ray.kill(self.actor.handle, no_restart=True)
            raise HostLost(f"{self.name} must answer within {timeout_s:g} s", seen="nothing") from None
        except ray.exceptions.RayError as error:
            failure = name_failure(error, self.name, "an environment's step")
            if isinstance(failure, ActorLost):
                raise HostLost(failure.rule, seen=failure.seen) from None
            raise failure from None


@contextmanager
def open_environments(
    cluster: Cluster,
    config: EnvironmentConfig,
    schemas: Sequence[dict[str, Any]],
    report: Callable[..., None],
    number: int,
) -> Iterator[Environments]:
    """Open the environments of a source on the nodes of the run.

    Args:
        number: number of the source, for the names of its actors.

    Raises:
        ConfigError: the user's file cannot be run, or differs between nodes.
        RewardError: the environments are not up in time.
    """
    num_nodes = cluster.plan.num_nodes
    counts = count_workers_by_node(config.num_workers, num_nodes)
    own = [config.model_copy(update={"num_workers": count}) for count in counts]
    hosts = [
        cluster.place(
            ActorPlan("environment", number * num_nodes + node, node, (), None),
            EnvironmentHost,
            own[node],
            schemas,
            max_concurrency=4,
        )
        for node in range(1, len(counts))
    ]
    starts = [(host, host.handle.start.remote()) for host in hosts]
    with EnvironmentPool(own[0], schemas) as here:
        if not hosts:
            yield here
            return
        timeout_s = config.start_timeout_s + _LATE_S
        found = cluster.gather(starts, timeout_s=timeout_s, what="starting environments")
        if wrong := [host.name for host, facts in zip(hosts, found, strict=True) if facts != here.facts]:
            raise ConfigError(
                "the environment's file must be the same on all nodes",
                seen=f"another resume, version or content in {', '.join(wrong)}",
                action="put it on a disk that all nodes see",
            )
        far = [FarHost(host, one.num_workers) for host, one in zip(hosts, own[1:], strict=True)]
        with SpreadEnvironments([HereHost(here), *far], here, report) as environments:
            yield environments
        close_actors(hosts, _ANSWER_S)
    environments.join()
