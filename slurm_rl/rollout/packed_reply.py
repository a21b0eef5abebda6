"""A reply on its way from an engine to its episode, and into the journal: its tokens as bytes.

    Completion([5, 17], [-0.5, -0.1], "so", ...)  ->  PackedReply(8 bytes of int32, 16 of float64, "so", ...)

With thousands of episodes under way nobody looks at single tokens: they are sent on, appended, summed up and written
down. A list of numbers takes ten times as long for each of these, holds eight times the memory, and Python's collector
of cycles goes through it.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from slurm_rl.data.groups import Completion
from slurm_rl.envs.environment import ToolCall
from slurm_rl.rollout.endpoint.conversation import Sampled


class PackedReply(NamedTuple):
    """A `Completion` of one turn.

    >>> packed = PackedReply.of(Completion([5, 17], [-0.5, -0.1], "so", False, 3))
    >>> len(packed.token_ids), len(packed.logprobs), packed.unpack().token_ids
    (8, 16, [5, 17])
    """

    token_ids: bytes
    """int32."""
    logprobs: bytes
    """float64, so that every bit comes back."""
    text: str
    truncated: bool
    weight_version: int
    token_versions: bytes = b""
    """int32; empty where all tokens have one version."""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, reply: Sampled) -> PackedReply:
        versions = reply.versions()
        is_mixed = any(version != versions[0] for version in versions)
        return cls(
            array("i", reply.token_ids).tobytes(),
            array("d", reply.logprobs).tobytes(),
            reply.text,
            reply.truncated,
            reply.weight_version,
            array("i", versions).tobytes() if is_mixed else b"",
            reply.content,
            reply.calls,
        )

    def unpack(self) -> Completion:
        return Completion(
            array("i", self.token_ids).tolist(),
            array("d", self.logprobs).tolist(),
            self.text,
            self.truncated,
            self.weight_version,
            array("i", self.token_versions).tolist(),
            content=self.content,
            calls=self.calls,
        )

    def versions(self) -> array[int]:
        """Of the weights that sampled each token."""
        if self.token_versions:
            return array("i", self.token_versions)
        return array("i", [self.weight_version]) * (len(self.logprobs) // 8)
