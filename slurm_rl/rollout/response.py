"""One reply of an engine, with its tokens packed into bytes.

A list of numbers takes eight times the memory and ten times as long to pickle, append and log, and slows down Python's
garbage collector. With thousands of episodes in flight, tokens stay packed until the trainer reads them.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from slurm_rl.data.groups import Completion
from slurm_rl.envs.environment import ToolCall
from slurm_rl.rollout.endpoint.conversation import Sampled


class Response(NamedTuple):
    """A packed `Completion` of one turn.

    >>> response = Response.pack(Completion([5, 17], [-0.5, -0.1], "so", False, 3))
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
    def pack(cls, completion: Sampled) -> Response:
        versions = completion.versions()
        is_mixed = any(version != versions[0] for version in versions)
        return cls(
            array("i", completion.token_ids).tobytes(),
            array("d", completion.logprobs).tobytes(),
            completion.text,
            completion.truncated,
            completion.weight_version,
            array("i", versions).tobytes() if is_mixed else b"",
            completion.content,
            completion.calls,
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
        """Return the weight version of each token."""
        if self.token_versions:
            return array("i", self.token_versions)
        return array("i", [self.weight_version]) * (len(self.logprobs) // 8)
