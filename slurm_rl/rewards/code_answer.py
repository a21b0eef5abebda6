"""The `code` verifier: which share of the row's tests does the completion's Python pass, in the sandbox?

The verdict is never the code's own word. A program's output is compared here, with an expectation that its
process was never given; asserts run in a second process, to which the code hands plain data only.
"""

from __future__ import annotations

import time
from typing import Literal

from slurm_rl.errors import DataError
from slurm_rl.rewards.code_tests import CodeTests, StdioTest, extract_code, parse_code_tests, same_output
from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import Checks, run_checks, run_program

MIB = 1024 * 1024


def score_code(
    completion: str,
    answer: str,
    *,
    score: Literal["all", "share"] = "all",
    test_timeout_s: float = 4.0,
    memory_mb: int = 1024,
    output_mb: float = 1.0,
    total_s: float = 8.0,
) -> float:
    """Share of the tests passed, or with `all` 1.0 when all are and else 0.0.

    Args:
        completion: Python, in a fenced block or as it is.
        answer: the tests, see `code_tests`.
        score, test_timeout_s, memory_mb, output_mb: see `config.reward.CodeConfig`.
        total_s: for all tests of the item; those not reached by then count as failed.

    Raises:
        DataError: the tests cannot be read, or could not be passed by anything.
        RewardError: the code could not be confined, so it was not run.
    """
    give_up = time.monotonic() + total_s
    tests = parse_code_tests(answer)
    limits = Limits(wall_s=test_timeout_s, memory_bytes=memory_mb * MIB, output_bytes=int(output_mb * MIB))
    source = extract_code(completion)
    total = len(tests.stdio) + len(tests.asserts)
    passed = 0
    for test in tests.stdio:
        if time.monotonic() < give_up and _passes(source, test, limits, give_up):
            passed += 1
        elif score == "all":
            return 0.0
    if tests.asserts and time.monotonic() < give_up:
        passed += sum(run_checks(source, _checks(tests), limits, give_up))
    return passed / total if score == "share" else float(passed == total)


def _passes(source: str, test: StdioTest, limits: Limits, give_up: float) -> bool:
    if len(test.stdout.encode()) > limits.output_bytes:
        raise DataError(
            f"the output of a test must fit reward.code.output_mb = {limits.output_bytes / MIB:g}",
            seen=f"{len(test.stdout.encode()) / MIB:.1f} MiB",
            action="raise reward.code.output_mb, or take the test out of the row",
        )
    done = run_program(source, test.stdin.encode(), limits, give_up)
    return done.exit_code == 0 and same_output(done.stdout.decode(errors="replace"), test.stdout)


def _checks(tests: CodeTests) -> Checks:
    return Checks(asserts=tests.asserts, setup=tests.setup, functions=tests.functions)
