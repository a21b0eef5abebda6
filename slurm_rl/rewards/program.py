"""A server that the supervisor of reward services starts."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A Python module that serves HTTP on an inherited listening socket and answers GET /health.

    It gets the arguments `--fd`, the socket, and `--parent`, the process to exit with.
    """

    name: str
    """Kind of service, for its log and messages."""
    route: str
    """Path of its requests."""
    words: tuple[str, ...]
    """Module and arguments."""
    variables: Mapping[str, str]
    """Additional environment variables."""
    start_s: float
    """Timeout from its start to its first answer."""
