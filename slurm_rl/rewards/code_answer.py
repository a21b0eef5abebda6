"""The `code` verifier: share of the row's tests that the completion's Python passes in the sandbox.

The code cannot give its own verdict. Output is compared here with an expectation that the code's process never
sees; asserts run in a second process, to which the code returns plain data.

The reference answer contains the tests as JSON:

    {"stdio": [{"stdin": "2 3\\n", "stdout": "5\\n"}]}                      the completion is a program
    {"asserts": ["assert add(2, 3) == 5"], "functions": ["add"]}          it defines functions
    {"asserts": ["check(add)"], "setup": "def check(f): ...", "functions": ["add"]}

`setup` runs before each assert. `functions` names the functions and classes that asserts may use; asserts pass plain
values (numbers, text, containers, dates, iterators, ...) and objects of the code. Results compare as in Python: plain
values by value and type, objects of the code by their own methods, but never as equal to plain values.

Asserts that pass functions or their own classes to the code cannot be judged: the row fails. A right program scores 0
if the program needs files, processes, the network or other packages, recurses deeper than Python's limit
without raising it, is spread over several blocks, or returns more than 16 MiB or lists nested deeper than about 200.
Output is compared line by line, without trailing blanks and trailing empty lines.
"""

import re
import time
from functools import lru_cache
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from slurm_rl.config.section import Section
from slurm_rl.data.lines import shorten
from slurm_rl.errors import DataError
from slurm_rl.rewards.extract import extract_code
from slurm_rl.rewards.sandbox.process import Limits
from slurm_rl.rewards.sandbox.runs import run_checks, run_program


class StdioTest(Section):
    """One run of the program."""

    stdin: str
    """Input of the program."""
    stdout: str
    """Expected output."""


class CodeTests(Section):
    """All tests of a row; see the module."""

    stdio: tuple[StdioTest, ...] = ()
    """Programs' inputs and outputs."""
    asserts: tuple[str, ...] = ()
    """Python statements, each a test of its own."""
    setup: str = ""
    """Python that runs before each assert."""
    functions: tuple[str, ...] = ()
    """Names of the code that the asserts use."""

    @model_validator(mode="after")
    def _something_to_test(self) -> Self:
        if not self.stdio and not self.asserts:
            raise ValueError("a row needs at least one test under stdio or asserts")
        if self.asserts and not self.functions:
            raise ValueError("asserts need the names of the functions that they test under functions")
        for text in (self.setup, *self.asserts):
            try:
                compile(f"{self.setup}\n{text}", "<check>", "exec")
            except (SyntaxError, ValueError) as error:
                raise ValueError(f"{text[:80]!r} is not Python: {error}") from None
        return self


@lru_cache(maxsize=256)
def parse_code_tests(answer: str) -> CodeTests:
    """Parse the tests of a row; cached, because all completions of a group share them."""
    try:
        return CodeTests.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        raise DataError(
            "the code verifier needs tests as reference answer, such as "
            '{"stdio": [{"stdin": "2 3\\n", "stdout": "5\\n"}]}',
            seen=f"{path + ': ' if path else ''}{first['msg']} in {shorten(answer, 200)!r}",
            action="correct the row; the forms are in the docstring of slurm_rl/rewards/code_answer.py",
        ) from None


_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\(0|\bos\.read\(0|\bfileinput\b")
_WRITES = re.compile(r"\bprint\b|\bstdout\b|\bwrite\b")


def find_program(completion: str, tests: CodeTests) -> str:
    """Return the code block to test: the last one that reads stdin, writes stdout or defines the functions."""
    needs = []
    if tests.stdio:
        needs.append(_READS if any(test.stdin.strip() for test in tests.stdio) else _WRITES)
    if tests.asserts:
        names = "|".join(re.escape(name) for name in tests.functions)
        define = rf"^\s*(?:async\s+)?(?:def|class)\s+(?:{names})\b|^\s*(?:{names})\s*(?::[^=\n]*)?="
        needs.append(re.compile(define, re.MULTILINE))
    return extract_code(completion, lambda code: all(need.search(code) for need in needs))


def same_output(seen: str, expected: str) -> bool:
    return _lines(seen) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


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
    """Return the share of passed tests, or with `all` 1.0 if all pass and else 0.0.

    Args:
        answer: the tests as JSON.
        total_s: limit for all tests of the item; tests not reached by then fail.

    Raises:
        DataError: the tests cannot be parsed, or no program could pass them.
        RewardError: the sandbox could not be set up; the code was not run.
    """
    give_up = time.monotonic() + total_s
    tests = parse_code_tests(answer)
    limits = Limits(wall_s=test_timeout_s, memory_bytes=memory_mb * MIB, output_bytes=int(output_mb * MIB))
    source = find_program(completion, tests)
    total = len(tests.stdio) + len(tests.asserts)
    passed = 0
    for test in tests.stdio:
        if time.monotonic() < give_up and _passes(source, test, limits, give_up):
            passed += 1
        elif score == "all":
            return 0.0
    if tests.asserts and time.monotonic() < give_up:
        passed += sum(run_checks(source, limits, give_up, **tests.model_dump(exclude={"stdio"})))
    return passed / total if score == "share" else float(passed == total)


def _passes(source: str, test: StdioTest, limits: Limits, give_up: float) -> bool:
    if len(test.stdout.encode()) > limits.output_bytes:
        raise DataError(
            f"the output of a test must fit reward.code.output_mb = {limits.output_bytes / MIB:g}",
            seen=f"{len(test.stdout.encode()) / MIB:.1f} MiB",
            action="raise reward.code.output_mb, or remove the test from the row",
        )
    done = run_program(source, test.stdin.encode(), limits, give_up)
    return done.exit_code == 0 and same_output(done.stdout.decode(errors="replace"), test.stdout)
