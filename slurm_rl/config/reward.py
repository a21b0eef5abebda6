"""Config of how completions are scored."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from slurm_rl.config.judge import JudgeConfig
from slurm_rl.config.registry import VerifierName
from slurm_rl.config.section import Fraction, PositiveFloat, PositiveInt, Section, checked_by, file_of

CODE_SHARE: Final = 0.8
"""Share of `timeout_s` for the tests of one completion; the rest is for starting and ending processes."""


class CodeConfig(Section):
    """The `code` verifier: resource limits, and how test results become a score."""

    score: Literal["all", "share"] = "all"
    """all: 1.0 if every test passes, else 0.0; share: passed tests / tests."""
    test_timeout_s: PositiveFloat = 4.0
    """Timeout of one test, or of one call of an assert; a late test has failed."""
    memory_mb: int = Field(default=1024, ge=128)
    """Address space of one process, in MiB; a reward worker runs one such process at a time, two for asserts."""
    output_mb: PositiveFloat = 1.0
    """Output of a program at most, in MiB; writing more is an error of the program."""


class RewardServiceConfig(Section):
    """Reward services: those the run starts, and the client's limits for any."""

    enabled: bool = False
    """Score in an HTTP service that the run starts, supervises and restarts, in place of the trainer's process."""
    num_replicas: PositiveInt = 1
    """Services that the run starts, with reward.num_workers processes each; requests are distributed round-robin."""
    spread: bool = False
    """Distribute services over the nodes of the run; false: all run on the head node, unless node_group or a GPU
    places them."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that services run on; null: any. With reward.model.device=cuda each runs
    where the plan assigns it a GPU."""
    address: Literal["loopback", "cluster"] = "loopback"
    """Interface that services listen on: loopback (head node only) or cluster (all nodes); both require a token."""
    items_per_request: PositiveInt = 64
    """Completions per request at most."""
    num_connections: PositiveInt = 16
    """Concurrent requests."""
    request_timeout_s: PositiveFloat = 180.0
    """Timeout of one attempt of a request."""
    deadline_s: PositiveFloat = 300.0
    """Time over which a failing request is retried with exponential backoff, before the run ends."""
    token_file: str | None = None
    """File of mode 0600 with the token for reward.url; null: the environment variable SLURM_RL_REWARD_TOKEN, or no
    token. The run's own services get a generated token."""
    max_body_mb: PositiveFloat = 64.0
    """Largest request body that the run's service accepts, in megabytes."""


class RewardModelConfig(Section):
    """Trained reward model."""

    path: str | None = None
    """Folder or hub name of a sequence classifier with one output, whose logit is the reward; null: none."""
    device: str = "cpu"
    """Device of the model in each worker. cpu; cuda: a GPU that the plan assigns to each service
    (reward.service.enabled); cuda:0: a GPU that policy and engines do not use, as in a reward-server; critic: a copy in
    each critic process of PPO."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the weights."""
    batch_size: PositiveInt = 16
    """Completions per forward pass."""
    normalize: bool = False
    """Return (logit - mean) / std with `mean` and `std` from the model's config.json, which task=rm and OpenRLHF
    measure on preference pairs; a critic initialized from the model predicts this scale."""

    @property
    def beside_critic(self) -> bool:
        return self.path is not None and self.device == "critic"

    def problems(self) -> Iterator[str]:
        if self.normalize and self.path is None:
            yield (
                "reward.model.normalize is for reward.model.path, which has the statistics; got path=null. "
                "Next: name the model, or in its service: reward-server reward.model.normalize=true"
            )


def split_urls(value: str | None) -> list[str]:
    """Return the parts of a comma-separated list, or none for None."""
    return [url.strip() for url in (value or "").split(",") if value is not None]


def _check_urls(value: str) -> None:
    for url in split_urls(value):
        if not re.fullmatch(r"https?://[^\s/]+\S*", url):
            raise ValueError(f"reward.url must be http://host:port/path, or several with commas; got {url!r}")


def _leave_out_nulls(value: object) -> object:
    # A preset merges into the table, so null is the only way to remove an entry.
    return {key: weight for key, weight in value.items() if weight is not None} if isinstance(value, dict) else value


class RewardConfig(Section):
    """Verifiers, reward models and services, and the tolerated failures."""

    verifiers: Annotated[dict[VerifierName, float], BeforeValidator(_leave_out_nulls)] = Field(default={})
    """Weight of each verifier; the reward is the weighted sum of their scores, and null removes a verifier. Not used
    with `function`, `model`, `url`, or a judge without `judge.weight`."""
    function: Annotated[str, file_of("reward.function")] | None = None
    """`file.py:name`, a function (queries, prompts, labels) that computes the reward in the reward workers."""
    model: RewardModelConfig = RewardModelConfig()
    """A trained model that computes the reward, with a copy in each worker."""
    url: Annotated[str, checked_by(_check_urls)] | None = None
    """Comma-separated URLs of external reward services with OpenRLHF's protocol, http://host:5000/get_reward."""
    judge: JudgeConfig = JudgeConfig()
    """A language model that computes the reward."""
    num_workers: PositiveInt = 1
    """Processes that score completions."""
    start_timeout_s: PositiveFloat = 120.0
    """Timeout for all workers to start; raise it for a slow shared file system or a large reward model."""
    timeout_s: PositiveFloat = 10.0
    """Timeout of one completion; a late verifier is killed and counted as a failure."""
    max_failure_rate: Fraction = 0.02
    """Share of failed rewards among the latest 1,000 or more (whole steps) above which the run stops; it also stops if
    all of a step fail. Failed completions are not trained on."""
    code: CodeConfig = CodeConfig()
    """Settings of the `code` verifier."""
    service: RewardServiceConfig = RewardServiceConfig()
    """Scoring over HTTP."""

    @property
    def models_on_gpus(self) -> bool:
        """Whether each service of the run has its own GPU for the reward model."""
        return self.service.enabled and self.model.path is not None and self.model.device == "cuda"

    @property
    def services_on_gpus(self) -> bool:
        """Whether each service, or server of a judge, has its own GPUs if the nodes have any."""
        return self.models_on_gpus or self.judge.server.model is not None

    @property
    def placed_group(self) -> str | None:
        """Node group of the services or of a judge's servers."""
        return self.service.node_group if self.judge.server.model is None else self.judge.server.node_group

    @property
    def num_placed(self) -> int:
        """Services, or servers of a judge, that the plan places on nodes; others run next to the trainer."""
        if self.judge.server.model is not None:
            return self.judge.server.num_replicas
        service = self.service
        is_placed = service.spread or service.node_group is not None or self.services_on_gpus
        return service.num_replicas if service.enabled and is_placed else 0

    @property
    def num_service_gpus(self) -> int:
        """GPUs of services, or servers of a judge, if the nodes have any."""
        return self.num_placed * self.judge.server.tensor_parallel_size if self.services_on_gpus else 0

    @property
    def names_a_scorer(self) -> bool:
        """Whether any source of rewards is configured."""
        return bool(self.verifiers or self.function or self.model.path or self.url or self.judge.is_on)

    def problems(self) -> Iterator[str]:
        chosen = {
            "reward.function": self.function,
            "reward.model.path": self.model.path,
            "reward.url": self.url,
            "reward.judge": self.judge.model_name,
        }
        names = [name for name, value in chosen.items() if value is not None]
        if len(names) > 1:
            yield f"only one of these can compute the reward; got {' and '.join(names)}. Next: leave the others out"
        if self.judge.weight is not None and not (self.verifiers and self.judge.is_on):
            yield (
                "reward.judge.weight is for the sum of a judge and reward.verifiers; got "
                f"{', '.join(self.verifiers) or 'no verifiers'} and {self.judge.model_name or 'no judge'}. "
                "Next: leave it out, or +reward.verifiers.math=1.0"
            )
        other = "reward.url" if self.url is not None else "reward.judge" if self.judge.is_on else None
        if other and self.service.enabled:
            yield (
                f"{other} does not score in services of the run, so reward.service.enabled would have no effect. "
                "Next: unset one of the two"
            )
        if not self.judge.is_on:
            yield from self._placement_problems()
        longest = CODE_SHARE * self.timeout_s
        if "code" in self.verifiers and self.code.test_timeout_s > longest:
            yield (
                f"code.test_timeout_s must be at most {CODE_SHARE:g} x timeout_s = {longest:g}, "
                f"got {self.code.test_timeout_s:g}: set reward.timeout_s={self.code.test_timeout_s / CODE_SHARE:g}"
            )

    def _placement_problems(self) -> Iterator[str]:
        service, device = self.service, self.model.device
        for key, value in {"spread": service.spread or None, "node_group": service.node_group}.items():
            if value is not None and not service.enabled:
                yield (
                    f"reward.service.{key} is for the services that a run starts; got {value!r} with "
                    "reward.service.enabled=false. Next: reward.service.enabled=true"
                )
        if self.num_placed and service.address != "cluster":
            yield (
                "services on other nodes must be reachable from the trainer's: reward.service.address=cluster; "
                f"got {service.address!r}"
            )
        if self.num_placed and self.model.path is not None and device not in ("cpu", "cuda"):
            yield (
                "a service on another node sees only the GPU that the plan assigns to it: reward.model.device=cuda, or "
                f"cpu; got {device!r}"
            )
