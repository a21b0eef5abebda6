"""Config of a judge: a language model behind an OpenAI-compatible API that scores completions."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from slurm_rl.config.paths import check_url, expand_user
from slurm_rl.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section, checked_by
from slurm_rl.errors import ConfigError, find_near

FIELDS: Final = ("question", "completion", "reference")
"""Names in braces that a prompt may contain."""
SERVER_SHARE: Final = 0.9
"""Share of a GPU's memory for vLLM in a judge's server."""
_COMPLETION = "{completion}"
_OURS = {
    "model",
    "model_tag",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "middleware",
    "api_key",
}
_OURS |= {"host", "port", "uds", "served_model_name", "api_server_count", "headless", "grpc", "config"}
_REQUEST: dict[str, Any] = {"temperature": 0.0, "max_tokens": 512}


def _check_variable(name: str) -> None:
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,79}", name):
        # The value is not printed: it may be the key itself.
        raise ValueError(
            "reward.judge.api_key must be the name of an environment variable, in capitals; got another text. "
            "Next: export OPENAI_API_KEY=..., and reward.judge.api_key=OPENAI_API_KEY"
        )


def _check_vllm_args(arguments: dict[str, Any]) -> None:
    if ours := sorted(name for name in arguments if name in _OURS):
        raise ValueError(
            f"reward.judge.server.vllm_args must not have arguments that the run sets; got {', '.join(ours)}. "
            "Next: leave them out, or set the key of reward.judge.server with this meaning"
        )


def _check_url(url: str) -> None:
    check_url("reward.judge.url", url, f"http://{url}, or https://")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"reward.judge.url must be http:// or https://; got {url!r}")


class JudgeServerConfig(Section):
    """vLLM servers of the run that serve the judge's model, on GPUs that the plan assigns."""

    model: str | None = None
    """Folder or hub name of the judge's model; null: reward.judge.url serves it."""
    num_replicas: PositiveInt = 1
    """Servers; each request goes to the one with the fewest requests in flight."""
    tensor_parallel_size: PositiveInt = 1
    """GPUs of each server, on one node."""
    node_group: str | None = None
    """Node group (a name in cluster.nodes) that servers run on; null: any."""
    max_model_len: PositiveInt | None = None
    """Longest prompt with its reply, in tokens; null: the model's context length."""
    start_timeout_s: PositiveFloat = 1200.0
    """Timeout for the servers to load the model and answer."""
    vllm_args: Annotated[dict[str, Any], checked_by(_check_vllm_args)] = Field(default={})
    """Additional arguments of `vllm serve`, such as reasoning_parser or chat_template."""


class JudgeConfig(Section):
    """A language model that scores completions, behind an OpenAI-compatible API."""

    model: str | None = None
    """Name of the model in requests to `url`; null: no judge, or that of `server`."""
    server: JudgeServerConfig = JudgeServerConfig()
    """The judge's model in the job itself."""
    url: Annotated[str, checked_by(_check_url)] | None = None
    """Base URL of the API, such as https://api.openai.com/v1."""
    api_key: Annotated[str, checked_by(_check_variable)] | None = None
    """Name of the environment variable that contains the API key; null: the API needs none."""
    prompt: str = ""
    """File with the judge's prompt, or its text; {completion}, {question} and {reference} are filled in."""
    parser: Literal["number", "choice", "json"] = "number"
    """Format of the verdict. number, choice: on the last line of the reply; json: the last JSON object of the reply."""
    range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest number of a verdict (number, json); they become rewards of 0 and 1."""
    choices: dict[str, float] = Field(default={})
    """Reward of each word that the judge may choose (choice)."""
    json_key: str = "score"
    """Key of the verdict (json); the other numbers of the object are logged."""
    weight: float | None = None
    """Weight of the verdict in a sum with reward.verifiers; null: the verdict is the reward."""
    votes: PositiveInt = 1
    """Replies per completion; the reward is their mean."""
    tries: PositiveInt = 2
    """Replies requested for a vote until one can be parsed."""
    request: dict[str, Any] = Field(default={})
    """Additional fields of each request, besides temperature 0.0 and max_tokens 512; null removes one."""
    num_connections: PositiveInt = 32
    """Concurrent requests."""
    timeout_s: PositiveFloat = 60.0
    """Timeout of one request."""
    deadline_s: PositiveFloat = 300.0
    """Time over which the failing requests of a completion are retried; then its reward has failed."""
    price_input: NonNegativeFloat = 0.0
    """Price of a million prompt tokens, for score/judge_cost."""
    price_output: NonNegativeFloat = 0.0
    """Price of a million tokens of replies."""

    @property
    def is_on(self) -> bool:
        return self.model is not None or self.server.model is not None

    @property
    def model_name(self) -> str | None:
        """Name of the model in requests."""
        return self.model or self.server.model

    @property
    def address(self) -> str:
        return self.url or "the run's own server"

    @property
    def longest_s(self) -> float:
        """Deadline of a completion; a server of the run may have to start again before it."""
        return self.deadline_s + (0.0 if self.server.model is None else self.server.start_timeout_s)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the additional fields of each request."""
        return {name: value for name, value in (_REQUEST | self.request).items() if value is not None}

    def problems(self) -> Iterator[str]:
        if self.server.model is None and self.server != JudgeServerConfig():
            yield "reward.judge.server needs the model that it serves, reward.judge.server.model; got null"
        if not self.is_on:
            return
        outside = {"model": self.model, "url": self.url}
        if self.server.model is not None and any(outside.values()):
            named = " and ".join(f"reward.judge.{name}" for name, value in outside.items() if value)
            yield f"the judge is reward.judge.server.model, or outside of the run; got {named} too. Next: leave one out"
        elif self.server.model is None and self.url is None:
            yield "reward.judge.model needs the API's address, reward.judge.url; got null"
        longest = self.server.max_model_len
        if longest is not None and longest <= self.fields.get("max_tokens", 0):
            yield (
                "reward.judge.server.max_model_len must be above reward.judge.request.max_tokens, the reply's length; "
                f"got {longest} and {self.fields['max_tokens']}"
            )
        if not self.prompt:
            yield "reward.judge.prompt must be a file with the judge's prompt; got none. Next: see docs/judges.md"
        elif _COMPLETION in self.prompt and (fault := find_fault(self.prompt)):
            yield fault
        if (self.parser == "choice") != bool(self.choices):
            yield (
                f"reward.judge.choices is for parser=choice, which needs it; got {self.choices} with "
                f"parser={self.parser}. Next: +reward.judge.choices.GOOD=1.0 +reward.judge.choices.BAD=0.0"
            )
        if self.range[0] >= self.range[1]:
            yield f"reward.judge.range must be [lowest, highest]; got {list(self.range)}"
        if self.votes > 1 and self.fields.get("temperature") == 0:
            yield (
                f"votes with temperature 0 are equal; got {self.votes}. Next: reward.judge.votes=1, or "
                "+reward.judge.request.temperature=1.0"
            )
        if taken := sorted({"model", "messages", "stream", "n"} & set(self.request)):
            yield f"reward.judge.request must not contain {', '.join(taken)}, which the judge sets itself"


def find_fault(prompt: str) -> str | None:
    """Return the rule that a prompt breaks, or None.

    >>> find_fault("Rate {completion} as {{'score': 1}}") is None
    True
    >>> find_fault("Rate {answer}: {completion}")
    'a prompt of a judge may contain {question}, {completion}, {reference}; got {answer}'
    """
    known = ", ".join(f"{{{name}}}" for name in FIELDS)
    names = [name for name in re.findall(r"(?<!\{)\{([A-Za-z_]+)\}(?!\})", prompt) if name not in FIELDS]
    return f"a prompt of a judge may contain {known}; got {{{names[0]}}}" if names else None


def _text_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def read_prompt(prompt: str) -> str:
    """Return the text of a prompt that may be a file.

    Raises:
        ConfigError: the file cannot be read, or its text is no prompt.
    """
    if _COMPLETION in prompt or not prompt:
        return prompt
    path = expand_user(Path(prompt))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        near = find_near(path.name, _text_files(path.parent)) if isinstance(error, FileNotFoundError) else None
        seen = f"{prompt[:200]!r} ({getattr(error, 'strerror', None) or error})"
        rule = f"reward.judge.prompt must be a readable file, or a text with {_COMPLETION}"
        action = f"did you mean {path.parent / near}?" if near else "create the file, or correct the path"
        raise ConfigError(rule, seen=seen, action=action) from None
    fault = find_fault(text) if _COMPLETION in text else f"a prompt of a judge must contain {_COMPLETION}; got none"
    if fault:
        raise ConfigError(f"{prompt}: {fault}", action="correct the file")
    return text
