"""Asks the `math` verifier of every reference answer whether it could judge anything by it.

Some cannot be parsed (`10\\%`, `0.\\overline{3}`), and a run ends at the first such row it meets, since scoring it 0
or 1 would both be wrong. So these rows are left out when the data set is made, and named.

The verifier runs in a process beside: sympy can take forever over a few characters, also inside C, and only a
process can be ended then.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from multiprocessing.connection import Connection

from slurm_rl.errors import ConfigError

TIMEOUT_S = 10.0
"""Deadline of one answer."""
_START_TIMEOUT_S = 120.0
"""Importing sympy from a cold network disk takes its time."""
Judge = Callable[[str, str], float]


def find_unscorable(
    answers: Iterable[str], say: Callable[[str], None], *, timeout_s: float = TIMEOUT_S, judge: Judge | None = None
) -> dict[str, str]:
    """What is wrong with each answer that does not even score against itself; each is tried once.

    Args:
        judge: (completion, answer) -> 1.0 when they are equal; the `math` verifier by default.

    Raises:
        ConfigError: math-verify is not installed.
    """
    if judge is None and find_spec("math_verify") is None:
        raise ConfigError(
            "checking reference answers needs math-verify", seen="not installed", action="pip install slurm_rl[prepare]"
        )
    unique = list(dict.fromkeys(answers))
    say(f"checking {len(unique)} different reference answers")
    bench = _Bench(judge)
    try:
        verdicts = {answer: bench.ask(answer, timeout_s) for answer in unique}
    finally:
        bench.close()
    return {answer: verdict for answer, verdict in verdicts.items() if verdict}


class _Bench:
    """The process that judges; a new one after each that was late or died."""

    def __init__(self, judge: Judge | None) -> None:
        self._judge = judge
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_sit, args=(theirs, self._judge), daemon=True)
        self._process.start()
        theirs.close()
        try:
            started = self._pipe.poll(_START_TIMEOUT_S) and self._pipe.recv()
        except EOFError:
            started = False
        if not started:
            self.close()
            raise ConfigError(
                f"the verifier's process must start within {_START_TIMEOUT_S:g} s",
                seen="it did not",
                action="look at what it printed above",
            )

    def ask(self, answer: str, timeout_s: float) -> str:
        """What is wrong with the answer, or ""."""
        self._pipe.send(answer)
        try:
            if self._pipe.poll(timeout_s):
                return str(self._pipe.recv())
            verdict = f"no verdict within {timeout_s:g} s"
        except EOFError:
            verdict = "the verifier died of it"
        self.close()
        self._start()
        return verdict

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _sit(pipe: Connection, judge: Judge | None) -> None:
    if judge is None:
        from slurm_rl.rewards.math_answer import score_math

        judge = score_math
    pipe.send("ready")
    while True:
        try:
            answer = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send("" if judge(answer, answer) == 1.0 else "it does not equal itself")
        except Exception as error:  # sympy raises what it likes
            pipe.send(f"{type(error).__name__}: {str(error)[:80]}")
