"""The way to a run's dashboard and TensorBoard as ssh's argv. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Forward:
    """One port of the other side, brought here."""

    local_port: int
    remote_port: int


def build_ssh_argv(host: str, forwards: Sequence[Forward], jump: str | None = None) -> list[str]:
    """ssh that only forwards, on loopback at both ends, and fails when a port here is taken.

    >>> build_ssh_argv("n1", [Forward(8265, 26970)], jump="me@login")[-5:]
    ['-L', '127.0.0.1:8265:127.0.0.1:26970', '-J', 'me@login', 'n1']
    """
    argv = ["ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30"]
    for forward in forwards:
        argv += ["-L", f"127.0.0.1:{forward.local_port}:127.0.0.1:{forward.remote_port}"]
    return [*argv, *(["-J", jump] if jump else []), host]


def build_tensorboard_argv(python: str, folder: str, port: int) -> list[str]:
    """TensorBoard of one run, on loopback."""
    return [python, "-m", "tensorboard.main", f"--logdir={folder}", "--host=127.0.0.1", f"--port={port}"]
