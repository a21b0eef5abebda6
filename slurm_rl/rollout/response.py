"""One reply of an engine, with its tokens packed into bytes.

A list of numbers takes eight times the memory and ten times as long to pickle, append and log, and slows down Python's
garbage collector. With thousands of episodes in flight, tokens stay packed until the trainer reads them.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from slurm_rl.data.groups import Details, Trajectory
from slurm_rl.envs.environment import ToolCall


class Response(NamedTuple):
    """A packed `Trajectory` of a single turn.

    >>> response = Response.pack(Trajectory([5, 17], [-0.5, -0.1], "so", False, 3))
    >>> len(response.token_ids), len(response.logprobs), response.unpack().token_ids
    (8, 16, [5, 17])
    """

    token_ids: bytes
    """int32."""
    logprobs: bytes
    """float64, which keeps every bit."""
    text: str
    truncated: bool
    weight_version: int
    token_versions: bytes = b""
    """int32; empty if all tokens have the same version."""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def pack(cls, reply: Trajectory) -> Response:
        versions, details = reply.versions(), reply.details or Details()
        is_mixed = any(version != versions[0] for version in versions)
        return cls(
            array("i", reply.token_ids).tobytes(),
            array("d", reply.logprobs).tobytes(),
            reply.text,
            reply.truncated,
            reply.weight_version,
            array("i", versions).tobytes() if is_mixed else b"",
            details.content,
            details.calls,
        )

    def unpack(self) -> Trajectory:
        versions = array("i", self.token_versions).tolist()
        is_plain = not versions and not self.content and not self.calls
        return Trajectory(
            array("i", self.token_ids).tolist(),
            array("d", self.logprobs).tolist(),
            self.text,
            self.truncated,
            self.weight_version,
            None if is_plain else Details(token_versions=versions, content=self.content, calls=self.calls),
        )

    def versions(self) -> array[int]:
        """Return the weight version of each token."""
        if self.token_versions:
            return array("i", self.token_versions)
        return array("i", [self.weight_version]) * (len(self.logprobs) // 8)
