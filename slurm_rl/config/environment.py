"""Worlds that a policy talks with for several turns. Without one, a completion is an episode of one turn."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from slurm_rl.config.functions import file_of
from slurm_rl.config.section import NonNegativeInt, PositiveFloat, PositiveInt, Section
from slurm_rl.config.tables import TOOLS
from slurm_rl.config.user_files.load import is_file


def _spell_tools(value: str) -> str:
    """A file alone stands for all of its functions.

    >>> _spell_tools("mine.py")
    'mine.py:*'
    """
    spec = f"{value}:*" if value.endswith(".py") else value
    if spec not in TOOLS and not is_file(spec):
        raise ValueError(f"env.tools must be file.py, file.py:name or one of {', '.join(TOOLS)}; got {value!r}")
    return spec


class EnvironmentConfig(Section):
    """Episodes of several turns."""

    name: Annotated[str, file_of("env.name")] | None = None
    """`file.py:Name`, a class with `reset(row, seed)` and `step(reply)` as slurm_rl.envs.environment.Environment has
    them; null: a completion is scored as it is."""
    program: tuple[str, ...] | None = None
    """A program that plays an episode by asking an OpenAI-compatible endpoint, such as [python, agent.py]; see
    docs/programs.md. In place of env.name."""
    program_at_once: PositiveInt = 16
    """Programs that run at the same time, on the node of the trainer."""
    program_rows: NonNegativeInt = 0
    """0: a program is started for each episode. Above: it stays, reads rows as lines and answers each with a line, so
    many at once; see docs/programs.md."""
    program_timeout_s: PositiveFloat = 600.0
    """Deadline of a program for one episode; one that is late has failed."""
    overrule_sampling: bool = False
    """A temperature or top_p that a program asks for, other than that of its source or the run, is refused with an
    explanation; true: it has no effect."""
    tools: Annotated[str, AfterValidator(_spell_tools)] | None = None
    """Python that the policy may call, in place of env.name: `file.py` (its functions, by signature and docstring),
    `file.py:name` (a function, a list of them, or a class, of which every episode has an instance and whose public
    methods are tools), or `python`, a sandbox. A reply without a call ends the episode."""
    tool_parser: str | None = None
    """How calls are written, by the name that vLLM has for it (hermes, llama3_json, ...); null: as the chat template
    writes one, where that can be read back."""
    tool_timeout_s: PositiveFloat = 5.0
    """Deadline of one call that awaits; a late one is a result that says so. One that blocks is ended by
    env.timeout_s, and costs its episode."""
    max_turns: PositiveInt = 8
    """Replies of the policy in one episode; one that is not done by then ends as truncated, and is scored."""
    turn_tokens: PositiveInt | None = None
    """Longest reply of one turn, in tokens. rollout.max_tokens bounds the episode: all replies and all that the
    environment said; where another reply of this length would not fit it ends as truncated."""
    history: Literal["kept", "rerendered"] = "kept"
    """kept: what was sampled stays as it was in all turns, and the template says what follows it. rerendered: the
    template writes the whole dialogue before each reply, and where it rewrites what was said (thinking that is cut) a
    sequence of its own begins, as the model reads it when it is served. With data.chat_template and env.name."""
    order: Literal["waves", "free"] = "waves"
    """waves: all episodes reply, then all environments step, and so on; a killed run has the same metrics in every
    digit. free: each goes on as soon as its own step is there, which keeps engines busy; a killed run has the same
    tokens in float32, and samples no turn again that had ended."""
    num_workers: PositiveInt = 1
    """Processes that hold environments, dealt out over the nodes of the run, the trainer's first."""
    timeout_s: PositiveFloat = 10.0
    """Deadline of one step of one environment; one that is late costs its episode."""
    start_timeout_s: PositiveFloat = 120.0
    """Deadline of all workers to be up."""

    @property
    def is_on(self) -> bool:
        """There are episodes of several turns."""
        return any(world is not None for world in (self.name, self.program, self.tools))

    @property
    def has_pool(self) -> bool:
        """Episodes have worlds in processes of ours (envs/pool.py)."""
        return self.name is not None or self.tools is not None
