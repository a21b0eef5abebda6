"""Config of multi-turn episodes: environments, tools and agent programs."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from slurm_rl.config.registry import TOOLS
from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section, file_of
from slurm_rl.config.user_files.load import is_file


def _spell_tools(value: str) -> str:
    """Expand a file to all of its functions.

    >>> _spell_tools("mine.py")
    'mine.py:*'
    """
    spec = f"{value}:*" if value.endswith(".py") else value
    if spec not in TOOLS and not is_file(spec):
        raise ValueError(f"env.tools must be file.py, file.py:name or one of {', '.join(TOOLS)}; got {value!r}")
    return spec


class EnvironmentConfig(Section):
    """Multi-turn episodes. Without an environment, tools or a program, an episode is one completion."""

    name: Annotated[str, file_of("env.name")] | None = None
    """`file.py:Name`, an environment class with `reset(row, seed)` and `step(reply)` (see
    slurm_rl.envs.environment.Environment); null: none."""
    agent_command: tuple[str, ...] | None = None
    """Command of an agent that plays an episode through an OpenAI-compatible endpoint, such as [python, agent.py], in
    place of env.name; see docs/agents.md."""
    agent_concurrency: PositiveInt = 16
    """Agent processes that run concurrently, on the trainer's node."""
    agent_rows_per_process: NonNegativeInt = 0
    """Episodes in flight in one long-lived agent process, which reads rows and writes results as lines; 0: one process
    per episode."""
    agent_timeout_s: PositiveFloat = 600.0
    """Timeout of one episode of an agent; a late one has failed."""
    ignore_request_sampling: bool = False
    """Ignore the temperature and top_p that an agent requests; false: refuse requests that differ from the run's."""
    tools: Annotated[str, AfterValidator(_spell_tools)] | None = None
    """Python functions that the policy may call, in place of env.name: `file.py` (all functions, described by signature
    and docstring), `file.py:name` (a function, a list, or a class with one instance per episode), or `python`, a
    sandbox. A reply without a call ends the episode."""
    tool_parser: str | None = None
    """vLLM's name of the tool call format (hermes, llama3_json, ...); null: derived from the chat template."""
    tool_timeout_s: PositiveFloat = 5.0
    """Timeout of an awaiting tool call, after which its result is an error message; a blocking call is ended by
    env.timeout_s together with its episode."""
    max_turns: PositiveInt = 8
    """Replies per episode at most; an unfinished episode is then truncated and scored."""
    turn_tokens: PositiveInt | None = None
    """Longest reply of one turn, in tokens; rollout.max_tokens bounds all replies and observations of the episode."""
    context: Literal["kept", "rerendered"] = "kept"
    """kept: sampled tokens stay unchanged over all turns. rerendered: the chat template renders the dialogue before
    each reply, and a new sequence begins where it rewrites earlier text (such as removed thinking)."""
    schedule: Literal["lockstep", "async"] = "lockstep"
    """lockstep: all episodes reply, then all environments step; metrics after a kill are identical in every digit.
    async: each episode continues as soon as its step returns, which keeps engines busy; after a kill tokens are
    identical in float32, and finished turns are not sampled again."""
    num_workers: PositiveInt = 1
    """Processes that run environments, distributed over the nodes of the run, starting with the trainer's."""
    timeout_s: PositiveFloat = 10.0
    """Timeout of one step of one environment; a late step fails its episode."""
    start_timeout_s: PositiveFloat = 120.0
    """Timeout for all workers to start."""

    @property
    def is_on(self) -> bool:
        """Whether episodes have several turns."""
        return self.has_pool or self.agent_command is not None

    @property
    def has_pool(self) -> bool:
        """Whether environments run in our worker processes (envs/pool.py)."""
        return self.name is not None or self.tools is not None
