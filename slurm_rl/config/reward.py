"""How a completion is scored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from slurm_rl.config.functions import file_of
from slurm_rl.config.section import Fraction, PositiveFloat, PositiveInt, Section, checked_by
from slurm_rl.config.tables import VerifierName

CODE_SHARE: Final = 0.8
"""Share of `timeout_s` that the tests of one completion get; the rest is for starting and ending processes."""


class CodeConfig(Section):
    """The `code` verifier: what one run of a completion may use, and how its tests become a score."""

    score: Literal["all", "share"] = "all"
    """`all`: 1.0 when every test passes, else 0.0. `share`: tests passed / tests."""
    test_timeout_s: PositiveFloat = 4.0
    """Deadline of one test, or of one call of an assert; a test that is late has failed."""
    memory_mb: int = Field(default=1024, ge=128)
    """Address space of one process, in MiB; a reward worker runs one such process at a time, two for asserts."""
    output_mb: PositiveFloat = 1.0
    """What a program may write, in MiB; more ends it."""


class RewardServiceConfig(Section):
    """Reward services: one that the run starts for itself, and how any is asked."""

    enabled: bool = False
    """Score in a service of the run, which is watched and started again, rather than inside the trainer."""
    num_replicas: PositiveInt = 1
    """Services the run starts, each with reward.num_workers processes; requests go to them in turn."""
    spread: bool = False
    """Deal them out over the nodes of the run; else all are on the head node, unless node_feature or a GPU of their own
    places them."""
    node_feature: str | None = None
    """One of cluster.nodes, on whose nodes they stand; null: any. With reward.model.device=cuda each stands where the
    plan has a GPU for it."""
    address: Literal["loopback", "cluster"] = "loopback"
    """Whether only the head node reaches it, or every node of the cluster; either way with a token."""
    items_per_request: PositiveInt = 64
    """Completions in one request, at the most."""
    num_connections: PositiveInt = 16
    """Requests in flight at once."""
    request_timeout_s: PositiveFloat = 180.0
    """Deadline of one try of one request."""
    deadline_s: PositiveFloat = 300.0
    """How long a request is tried again, with growing pauses, before the run ends."""
    token_file: str | None = None
    """File of mode 0600 with the token of the services under reward.url; null: the environment variable
    SLURM_RL_REWARD_TOKEN, and without it no token is sent. The run's own services get one made for them."""
    max_body_mb: PositiveFloat = 64.0
    """Largest request the service of the run takes, in megabytes."""


class RewardModelConfig(Section):
    """A trained reward model."""

    path: str | None = None
    """Folder or hub name of a sequence classifier with one output; its logit is the reward. null: none."""
    device: str = "cpu"
    """Where each worker holds it: cpu; cuda, with reward.service.enabled, on a GPU that the plan gives to each service;
    cuda:0, a GPU that neither policy nor engines use, as in a reward-server; or, of PPO, `critic`: each of the critic's
    processes holds a copy on its own GPU and scores its share."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of its weights."""
    batch_size: PositiveInt = 16
    """Completions in one forward pass."""
    normalize: bool = False
    """The reward is (logit - mean) / std, by the `mean` and `std` in the model's config.json: those of its scores of
    preference pairs, which task=rm and OpenRLHF measure. A critic that begins as such a model speaks in this unit."""

    @property
    def beside_critic(self) -> bool:
        return self.path is not None and self.device == "critic"

    def problems(self) -> Iterator[str]:
        if self.normalize and self.path is None:
            yield (
                "reward.model.normalize is for reward.model.path, whose scores were measured; got path=null. "
                "Next: name the model, or in its service: reward-server reward.model.normalize=true"
            )


def split_urls(value: str | None) -> list[str]:
    """The parts of a comma-separated list; none of null."""
    return [url.strip() for url in (value or "").split(",") if value is not None]


def _check_urls(value: str) -> None:
    for url in split_urls(value):
        if not re.fullmatch(r"https?://[^\s/]+\S*", url):
            raise ValueError(f"reward.url must be http://host:port/path, or several with commas; got {url!r}")


def _leave_out_nulls(value: object) -> object:
    # A preset adds to the table of the defaults; how else could it take one away?
    return {key: weight for key, weight in value.items() if weight is not None} if isinstance(value, dict) else value


class RewardConfig(Section):
    """Verifiers, and what happens when one fails."""

    verifiers: Annotated[dict[VerifierName, float], BeforeValidator(_leave_out_nulls)] = Field(default={})
    """Verifier name to weight; the reward is the weighted sum, and a weight of null leaves a verifier out. Not used
    with `function`, `model` or `url`."""
    function: Annotated[str, file_of("reward.function")] | None = None
    """`file.py:name`, a function (queries, prompts, labels) that makes the whole reward; runs in the workers."""
    model: RewardModelConfig = RewardModelConfig()
    """A trained model that makes the whole reward; runs in the workers, a copy in each."""
    url: Annotated[str, checked_by(_check_urls)] | None = None
    """Reward services outside of the run, comma-separated, with OpenRLHF's protocol: http://host:5000/get_reward."""
    num_workers: PositiveInt = 1
    """Processes that run verifiers."""
    start_timeout_s: PositiveFloat = 120.0
    """Deadline of all workers to be up; importing sympy from a slow shared disk takes a minute at the worst, loading
    a large reward model longer."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one completion; a verifier that is late is ended and counted as a failure."""
    max_failure_rate: Fraction = 0.02
    """Largest share of failed rewards among the newest 1,000 or more, in whole steps: at 0.02 twenty may fail before
    the run stops with the cause. It also stops when all of a step fail. Failed completions are not trained on."""
    code: CodeConfig = CodeConfig()
    """Settings of the `code` verifier."""
    service: RewardServiceConfig = RewardServiceConfig()
    """Scoring over HTTP."""

    @property
    def services_on_gpus(self) -> bool:
        """Whether each service of the run has a GPU of its own, for its reward model."""
        return self.service.enabled and self.model.path is not None and self.model.device == "cuda"

    @property
    def num_placed(self) -> int:
        """Services that the plan puts on nodes; those that it does not are beside the trainer."""
        service = self.service
        is_placed = service.spread or service.node_feature is not None or self.services_on_gpus
        return service.num_replicas if service.enabled and is_placed else 0

    @property
    def names_a_scorer(self) -> bool:
        """Whether anything is said of how a completion is scored."""
        return bool(self.verifiers or self.function or self.model.path or self.url)

    def problems(self) -> Iterator[str]:
        chosen = {
            "reward.function": self.function is not None,
            "reward.model.path": self.model.path is not None,
            "reward.url": self.url is not None,
        }
        names = [name for name, is_chosen in chosen.items() if is_chosen]
        if len(names) > 1:
            yield f"one of them makes the whole reward, so set one alone; got {' and '.join(names)}"
        if self.url is not None and self.service.enabled:
            yield (
                "reward.url names services outside of the run, so reward.service.enabled would have no effect. "
                "Next: unset one of the two"
            )
        yield from self._placement_problems()
        longest = CODE_SHARE * self.timeout_s
        if "code" in self.verifiers and self.code.test_timeout_s > longest:
            yield (
                f"code.test_timeout_s must be at most {CODE_SHARE:g} x timeout_s = {longest:g}, "
                f"got {self.code.test_timeout_s:g}: set reward.timeout_s={self.code.test_timeout_s / CODE_SHARE:g}"
            )

    def _placement_problems(self) -> Iterator[str]:
        service, device = self.service, self.model.device
        for key, value in {"spread": service.spread or None, "node_feature": service.node_feature}.items():
            if value is not None and not service.enabled:
                yield (
                    f"reward.service.{key} is for the services that a run starts; got {value!r} with "
                    "reward.service.enabled=false. Next: reward.service.enabled=true"
                )
        if self.num_placed and service.address != "cluster":
            yield (
                "services on nodes of their own must be reached from the trainer's: reward.service.address=cluster; "
                f"got {service.address!r}"
            )
        if self.num_placed and self.model.path is not None and device not in ("cpu", "cuda"):
            yield (
                "a service on nodes of its own sees the GPU that the plan gives it alone: reward.model.device=cuda, or "
                f"cpu; got {device!r}"
            )
