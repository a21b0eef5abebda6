"""The driver's side of Ray: connecting, counting nodes, placing actors, waiting with deadlines."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slurm_rl
from slurm_rl.errors import OutOfMemory, SlurmRLError, TrainingError, first_line
from slurm_rl.node.heartbeat import beat, with_heartbeat
from slurm_rl.node.processes import LIFE, LIFE_BEFORE, MARK
from slurm_rl.node.stop import StopFlag
from slurm_rl.node.wait_for_ray_nodes import POLL_S
from slurm_rl.plan.job import ActorPlan, JobPlan
from slurm_rl.workers.ray_nodes import OwnRayNodes, SharedRayNodes


@dataclass(frozen=True)
class Actor:
    """A Ray actor with the name that errors use."""

    name: str
    handle: Any


class ActorLost(TrainingError):
    """An actor's process has died."""

    actor: str = ""
    """Name of the actor."""
    handle: Any = None


class Cluster:
    """The run's Ray cluster, seen from the driver."""

    while_waiting: Callable[[], None] = staticmethod(lambda: None)
    """Callback during every wait for actors."""

    def __init__(self, plan: JobPlan, stop: StopFlag) -> None:
        self.plan, self.stop = plan, stop
        self.nodes = OwnRayNodes(plan) if plan.address is None else SharedRayNodes(plan)

    def connect(self) -> None:
        """Join the Ray cluster and wait until the nodes of the run have joined."""
        import ray

        # Ray puts the working directory first on the path of workers. They must run the snapshot, like the driver.
        with contextlib.chdir(Path(slurm_rl.__file__).parents[1]):
            ray.init(
                address=os.environ["RAY_ADDRESS"],
                namespace=self.nodes.namespace,
                log_to_driver=False,
                logging_level="WARNING",
            )
        self.nodes.wait(time.monotonic() + self.plan.limits.start_timeout_s, self.stop)

    def place(self, actor: ActorPlan, cls: type, *args: Any, max_concurrency: int = 1, generation: int = 0) -> Actor:
        """Start `cls(*args)` as a Ray actor on the node and GPUs of the plan.

        Args:
            generation: number of earlier starts in this attempt.
            max_concurrency: concurrent calls; 1 keeps their order.
        """
        import ray

        name = f"{actor.role}-{actor.index}"
        # Ray reserves the name of an actor that is being killed.
        own = f"{name}.{generation}" if generation else name
        before = self._life(name, generation - 1) if generation else ""
        remote = ray.remote(with_heartbeat(cls, own)).options(
            name=own,
            num_cpus=0,
            max_concurrency=max_concurrency,
            runtime_env={
                "env_vars": {
                    **self._threads(actor),
                    **self._visible_gpus(actor),
                    LIFE: self._life(name, generation),
                    LIFE_BEFORE: before,
                }
            },
            **self.nodes.options(actor),
        )
        return Actor(name, remote.remote(*args))

    def _life(self, name: str, generation: int) -> str:
        """Name one process of an actor and its children."""
        return f"{name}.{generation} of {os.environ.get(MARK, str(os.getpid()))} {self.plan.run_dir}"

    def _threads(self, actor: ActorPlan) -> dict[str, str]:
        """Return the environment variable for the number of an actor's CPU threads.

        Ray gives one thread to an actor without CPUs, which slows transfers through host memory. A training worker on a
        GPU gets its share of the node's cores. An engine on GPUs keeps one, which vLLM uses for serving.
        """
        number = actor.num_threads
        if number is None and actor.gpus and actor.role != "rollout":
            number = max(1, self.nodes.num_cpus(actor.node) * len(actor.gpus) // self.plan.gpus_on(actor.node))
        return {} if number is None else {"OMP_NUM_THREADS": str(number)}

    def _visible_gpus(self, actor: ActorPlan) -> dict[str, str]:
        from slurm_rl.plan.visibility import MASK_VARIABLES

        variable = MASK_VARIABLES.get(self.plan.accelerator)
        return {} if variable is None else {variable: ",".join(self.nodes.gpu_names(actor))}

    def gather(
        self,
        calls: Sequence[tuple[Actor, Any]],
        *,
        timeout_s: float,
        what: str,
        stoppable: bool = True,
        on_ready: Callable[[int], None] = lambda count: None,
    ) -> list[Any]:
        """Return the results of remote calls in order.

        Args:
            calls: (actor, object reference) pairs.
            stoppable: raise StopRequested at a stop signal; False while weights change.
            on_ready: called with the number of results when it grows.

        Raises:
            TrainingError: an actor died, raised, or did not answer before the deadline; the message names it.
        """
        import ray

        deadline = time.monotonic() + timeout_s
        names = {reference: actor.name for actor, reference in calls}
        results: dict[Any, Any] = {}
        pending = list(names)
        while pending:
            if stoppable:
                self.stop.check()
            beat()
            self.while_waiting()
            ready, pending = ray.wait(pending, num_returns=len(pending), timeout=POLL_S)
            for reference in ready:
                try:
                    results[reference] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = name_failure(error, names[reference], what)
                    if isinstance(failure, ActorLost):
                        failure.handle = next(actor.handle for actor, of in calls if of == reference)
                    raise failure from None
            if ready:
                on_ready(len(results))
            if pending and time.monotonic() > deadline:
                raise TrainingError(
                    f"{what} must end within {timeout_s:g} s",
                    seen="no answer from " + ", ".join(names[reference] for reference in pending),
                    action="raise trainer.step_timeout_s if the work is only slow; else see the attempt's ray logs",
                )
        return [results[reference] for _, reference in calls]


def close_actors(actors: Sequence[Actor], within_s: float) -> None:
    """Call `close` of the actors and wait for those that answer; Ray kills the others."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait([actor.handle.close.remote() for actor in actors], num_returns=len(actors), timeout=within_s)


def call_method(method: Any, *args: Any) -> Future[Any]:
    """Call a method of an actor and return the future of its result."""
    try:
        answer: Future[Any] = method.remote(*args).future()
    except Exception as error:  # for example, Ray already knows that the actor is dead
        answer = Future()
        answer.set_exception(error)
    return answer


def name_failure(error: BaseException, name: str, what: str) -> BaseException:
    """Return the error for a failed call of actor `name`; our own errors and unwrapped ones are unchanged."""

    import ray

    from slurm_rl.node.oom import is_out_of_memory

    if isinstance(error, ray.exceptions.RayTaskError):
        if isinstance(error.cause, SlurmRLError):
            return error.cause
        print(error, file=sys.stderr)  # the actor's traceback, into the driver's log
        if is_out_of_memory(error.cause):
            return OutOfMemory(f"{what} must fit in memory", seen=f"{first_line(error.cause)}", where=name)
        return TrainingError(f"{what} must not fail", seen=f"{error.cause!r} in {name}", where="driver.log")
    if isinstance(error, ray.exceptions.RayActorError):
        print(error, file=sys.stderr)
        lost = ActorLost(
            f"{name} must live through {what}", seen=first_line(error), action="see the attempt's ray logs"
        )
        lost.actor = name
        return lost
    return error
