"""The controller's side of measurements between nodes: one srun starts a client on each node, the leader asks them."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TextIO

from slurm_rl.errors import SlurmRLError
from slurm_rl.launch.slurm.srun import srun_argv
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health.pairs import Pair, judge_pairs, measure_rounds
from slurm_rl.plugins.health.verdict import Verdict

_CONNECT_S = 60.0
_TRANSFER_S = 10.0
_NUM_BYTES = 32 << 20
_END_S = 5.0
TOKEN_VARIABLE = "SLURM_RL_MEASURE_TOKEN"
"""Environment variable with the token that authenticates the clients."""


class Leader:
    """Holds the connections of the nodes and asks pairs of them to measure each other."""

    def __init__(self, token: str = "", num_bytes: int = _NUM_BYTES) -> None:
        self.token, self.num_bytes = token or secrets.token_hex(16), num_bytes
        self.listener = socket.create_server(("", 0), backlog=1024)
        self.port = int(self.listener.getsockname()[1])
        self.nodes: dict[str, tuple[socket.socket, TextIO, str, int]] = {}
        """Node -> its connection, address and port."""

    def close(self) -> None:
        self.listener.close()
        for sock, stream, _, _ in self.nodes.values():
            with contextlib.suppress(OSError):
                stream.close()
            sock.close()

    def accept(self, number: int, has_ended: Callable[[], bool], within_s: float = _CONNECT_S) -> None:
        """Wait until so many nodes have connected, their step has ended, or the time is over."""
        deadline = time.monotonic() + within_s
        self.listener.settimeout(0.2)
        while len(self.nodes) < number and time.monotonic() < deadline and not has_ended():
            with contextlib.suppress(TimeoutError):
                sock, (address, *_) = self.listener.accept()
                self._authenticate(sock, str(address))

    def _authenticate(self, sock: socket.socket, address: str) -> None:
        sock.settimeout(_END_S)
        stream = sock.makefile("rw", encoding="utf-8")
        try:
            hello = json.loads(stream.readline(1000))
            if not secrets.compare_digest(str(hello["token"]), self.token):
                raise ValueError("bad token")
            self.nodes[str(hello["node"])] = (sock, stream, address, int(hello["port"]))
        except (OSError, ValueError, KeyError, TypeError):
            sock.close()

    def ask(self, questions: Mapping[str, Mapping[str, Any]], within_s: float) -> dict[str, dict[str, Any] | None]:
        """Send a question to each node at once and return the answers; None for a timeout."""
        for node, question in questions.items():
            with contextlib.suppress(OSError):
                self.nodes[node][1].write(json.dumps(question) + "\n")
                self.nodes[node][1].flush()
        deadline = time.monotonic() + within_s
        return {node: self._read(node, deadline) for node in questions}

    def _read(self, node: str, deadline: float) -> dict[str, Any] | None:
        sock, stream, _, _ = self.nodes[node]
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            answer = json.loads(stream.readline(4000))
        except (OSError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None

    def measure(self, pairs: Iterable[Pair]) -> dict[Pair, float | None]:
        """Return the rate in MB/s of the slower direction of each pair, measured all at once."""
        pairs = [pair for pair in pairs if all(node in self.nodes for node in pair)]
        limits = {"num_bytes": self.num_bytes, "deadline_s": _TRANSFER_S}
        questions = {first: {"to": self.nodes[second][2:], **limits} for first, second in pairs}
        answers = self.ask(questions, _TRANSFER_S + 2.0)
        return {pair: self._rate(answers[pair[0]] or {}) for pair in pairs}

    def _rate(self, answer: Mapping[str, Any]) -> float | None:
        try:
            return self.num_bytes / 1e6 / max(float(answer["received_s"]), float(answer["sent_s"]), 1e-6)
        except (ValueError, KeyError, TypeError):
            return None


def measure_pairs(plan: JobPlan, hosts: Sequence[str], env: Mapping[str, str]) -> dict[str, Verdict]:
    """Measure TCP between pairs of nodes; `unknown` on all nodes if that is not possible."""
    leader = Leader()
    try:
        address = own_address(next(host for host in hosts if host != env.get(NODE_VARIABLE)))
        script = f"{plan.run_dir}/code/slurm_rl/plugins/health/pairs_node.py"
        shell = f'exec "$0" -I -S "$1" {address} {leader.port} "${NODE_VARIABLE}"'
        argv = srun_argv(plan, hosts, ["/bin/sh", "-c", shell, plan.host_python, script])
        with running(argv, {**env, TOKEN_VARIABLE: leader.token}) as step:
            return lead_pairs(leader, hosts, lambda: step.poll() is not None)
    except (OSError, SlurmRLError) as error:
        return dict.fromkeys(hosts, Verdict("unknown", f"pairs were not measured: {error}"))
    finally:
        leader.close()


def lead_pairs(leader: Leader, hosts: Sequence[str], has_ended: Callable[[], bool]) -> dict[str, Verdict]:
    """Measure the nodes that connect and judge all of them."""
    leader.accept(len(hosts), has_ended)
    missing = [host for host in hosts if host not in leader.nodes]
    if 2 * len(missing) >= len(hosts):
        seen = f"only {len(hosts) - len(missing)} of {len(hosts)} nodes connected to the measurement of pairs"
        return dict.fromkeys(hosts, Verdict("unknown", seen))
    first, second = measure_rounds(leader.measure, [host for host in hosts if host not in missing])
    return judge_pairs(hosts, first, second, missing)


@contextlib.contextmanager
def running(
    argv: Sequence[str], env: Mapping[str, str], log: BinaryIO | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Run a step, and terminate it if its clients do not end with the leader's connections."""
    step = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    try:
        yield step
    finally:
        step.terminate()
        try:
            step.wait(_END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()
