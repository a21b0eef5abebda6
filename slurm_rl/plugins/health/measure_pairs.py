"""The test of pairs: the controller leads it, all nodes come by one srun. Only what TCP does is measured; what
NCCL and RCCL do, `doctor` measures."""

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
from slurm_rl.launchers.slurm.srun import srun_argv
from slurm_rl.node.rendezvous import own_address
from slurm_rl.plan.job import NODE_VARIABLE, JobPlan
from slurm_rl.plugins.health.gate.pairs import SOCKETS, Pair, Scale, first_round, is_slow, judge_pairs, second_round
from slurm_rl.plugins.health.gate.verdict import Verdict

_MEETING_S = 60.0
MORE_TRIES = 2
_TRANSFER_S = 10.0
_NUM_BYTES = 32 << 20
_END_S = 5.0
_VARIABLE = "SLURM_RL_PAIRS"


class Leader:
    """Has the nodes' connections, and asks pairs of them to measure each other."""

    def __init__(self, word: str, num_bytes: int = _NUM_BYTES, transfer_s: float = _TRANSFER_S) -> None:
        self.word, self.num_bytes, self.transfer_s = word, num_bytes, transfer_s
        self.listener = socket.create_server(("", 0), backlog=1024)
        self.port = int(self.listener.getsockname()[1])
        self.here: dict[str, tuple[socket.socket, TextIO, str, int]] = {}
        """Node -> its connection, address and port."""

    def close(self) -> None:
        self.listener.close()
        for sock, words, _, _ in self.here.values():
            with contextlib.suppress(OSError):
                words.close()
            sock.close()

    def meet(self, hosts: Sequence[str], step: subprocess.Popen[str], within_s: float = _MEETING_S) -> list[str]:
        """The nodes that did not come; at once when srun has ended."""
        deadline = time.monotonic() + within_s
        while (missing := [host for host in hosts if host not in self.here]) and time.monotonic() < deadline:
            if step.poll() is not None:
                break
            self.listener.settimeout(0.2)
            try:
                sock, (address, *_) = self.listener.accept()
            except TimeoutError:
                continue
            self._greet(sock, str(address))
        return missing

    def _greet(self, sock: socket.socket, address: str) -> None:
        sock.settimeout(_END_S)
        words = sock.makefile("rw", encoding="utf-8")
        try:
            hello = json.loads(words.readline(1000))
            if hello["word"] != self.word:
                raise ValueError("somebody else")
            self.here[str(hello["node"])] = (sock, words, address, int(hello["port"]))
        except (OSError, ValueError, KeyError, TypeError):
            sock.close()

    def measure(self, pairs: Iterable[Pair]) -> dict[Pair, float | None]:
        """Megabytes a second of each pair's slower way; all of them at once."""
        pairs = [pair for pair in pairs if all(node in self.here for node in pair)]
        how = {"num_bytes": self.num_bytes, "deadline_s": self.transfer_s}
        asked = {first: {"to": self.here[second][2:], **how} for first, second in pairs}
        said = self.ask(asked, self.transfer_s + 2.0)
        return {pair: self._find_rate(said[pair[0]]) for pair in pairs}

    def ask(self, asked: Mapping[str, Mapping[str, Any]], within_s: float) -> dict[str, dict[str, Any] | None]:
        """Put a question to each of these nodes, all at once; None of one that does not answer."""
        for node, question in asked.items():
            with contextlib.suppress(OSError):
                self.here[node][1].write(json.dumps(question) + "\n")
                self.here[node][1].flush()
        deadline = time.monotonic() + within_s
        return {node: self._read(node, deadline) for node in asked}

    def _read(self, node: str, deadline: float) -> dict[str, Any] | None:
        sock, words, _, _ = self.here[node]
        try:
            sock.settimeout(max(0.1, deadline - time.monotonic()))
            said = json.loads(words.readline(4000))
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def _find_rate(self, said: Mapping[str, Any] | None) -> float | None:
        try:
            return (
                None if said is None else self.num_bytes / 1e6 / max(float(said["got_s"]), float(said["sent_s"]), 1e-6)
            )
        except (ValueError, KeyError, TypeError):
            return None


def measure_pairs(plan: JobPlan, hosts: Sequence[str], env: Mapping[str, str]) -> dict[str, Verdict]:
    """A verdict on each node; `unknown` on all where the test cannot be made."""
    word = secrets.token_hex(16)
    leader = Leader(word)
    try:
        address = own_address(next(host for host in hosts if host != env.get(NODE_VARIABLE)))
        with started(_argv(plan, hosts, address, leader.port), {**env, _VARIABLE: word}) as step:
            return lead(leader, hosts, step)
    except (OSError, SlurmRLError) as error:
        return dict.fromkeys(hosts, Verdict("unknown", f"pairs were not tested: {error}"))
    finally:
        leader.close()


def lead(leader: Leader, hosts: Sequence[str], step: subprocess.Popen[str]) -> dict[str, Verdict]:
    missing = leader.meet(hosts, step)
    if 2 * len(missing) >= len(hosts):
        words = f"{len(hosts) - len(missing)} of {len(hosts)} nodes came to the test of pairs"
        return dict.fromkeys(hosts, Verdict("unknown", words))
    first, second = measure_rounds(leader.measure, [host for host in hosts if host not in missing])
    return judge_pairs(hosts, first, second, missing)


def measure_rounds(
    measure: Callable[[Iterable[Pair]], dict[Pair, float | None]], hosts: Sequence[str], scale: Scale = SOCKETS
) -> tuple[dict[Pair, float | None], dict[Pair, float | None]]:
    """Both rounds, of nodes that are there."""
    first = {pair: rate for pairs in first_round(hosts) for pair, rate in measure(pairs).items()}
    second: dict[Pair, float | None] = {}
    for pairs in second_round(first, scale):
        second |= measure(pairs)
        # A busy moment is no slow network.
        for _ in range(MORE_TRIES):
            slow = [pair for pair in pairs if second.get(pair) is not None and is_slow(second[pair], first, scale)]
            second |= {pair: max_rate(second[pair], rate) for pair, rate in measure(slow).items()}
    return first, second


def max_rate(first: float | None, second: float | None) -> float | None:
    return max((rate for rate in (first, second) if rate is not None), default=None)


def _argv(plan: JobPlan, hosts: Sequence[str], address: str, port: int) -> list[str]:
    script = f"{plan.run_dir}/code/slurm_rl/plugins/health/gate/pairs_node.py"
    run = f'exec "$0" -I -S "$1" {address} {port} "${NODE_VARIABLE}"'
    return srun_argv(plan, hosts, ["/bin/sh", "-c", run, plan.host_python, script])


@contextlib.contextmanager
def started(
    argv: Sequence[str], env: Mapping[str, str], log: BinaryIO | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """srun, which ends when the leader closes its connections; ended where it does not."""
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


def is_worth(hosts: Sequence[str]) -> bool:
    """Of two nodes nobody could say which is slow."""
    return len(hosts) > 2
