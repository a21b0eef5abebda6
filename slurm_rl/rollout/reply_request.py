"""The nouns of single replies: what an engine is asked for, and what comes of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from slurm_rl.algorithms.sequences import ImageSpan, TokenPrompt
from slurm_rl.data.groups import SamplingSpec
from slurm_rl.data.tool_syntax import ToolSyntax
from slurm_rl.rollout.packed_reply import PackedReply


class ReplyRequest(NamedTuple):
    """What an engine is asked for."""

    episode: str
    """One request of an episode is in flight at a time."""
    token_ids: bytes
    """What the reply follows, as int32."""
    seed: int
    """Decides the random numbers alone."""
    spec: SamplingSpec
    tools: ToolSyntax | None = None
    """How calls are read off the reply, where its program brought tools; None: as the run's own tools are."""
    images: Sequence[ImageSpan] = ()
    """Among the tokens."""

    @property
    def prompt(self) -> TokenPrompt:
        return TokenPrompt(token_ids=array("i", self.token_ids).tolist(), images=self.images)


Replied: TypeAlias = tuple[str, PackedReply]
"""An episode, and its reply."""
Refused: TypeAlias = tuple[str, str]
"""An episode whose request the engine refused, and why."""
