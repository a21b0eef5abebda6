"""Whatever the code of a model writes to the process of its checks, that reads plain data or gives it up."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl.rewards.sandbox.inside import check, wire
from tests.unit.fuzz.values import costs_at_most, json_values, mangled

TAGS = st.sampled_from(["n", "t", "i", "f", "c", "s", "b", "a", "l", "u", "e", "z", "d", "o", "?"])
PARTS = st.sampled_from(["0x5", "ff", "-0x1", "0x" + "f" * 99, 1.5, True, 7, [["n"], ["l", []]], [["l", []], ["n"]]])
TAGGED = st.recursive(
    st.tuples(TAGS, PARTS | json_values(1)).map(list) | TAGS.map(lambda tag: [tag]) | json_values(2),
    lambda inner: st.tuples(TAGS, st.lists(inner, max_size=3) | inner).map(list),
    max_leaves=8,
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def receive(data: bytes) -> Any:
    """What is read when the other side has written this and left."""
    here, there = os.pipe()
    # A pipe holds 64 KiB; who writes more waits for the reader.
    writer = threading.Thread(target=_write, args=(there, data))
    writer.start()
    try:
        return wire.receive(here)
    finally:
        os.close(here)
        writer.join()


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError), open(fd, "wb") as file:
        file.write(data)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@settings(max_examples=1000, derandomize=True, deadline=None)
@given(st.binary(max_size=64) | TAGGED.map(lambda tree: frame(json.dumps(tree).encode())).flatmap(mangled))
@example(frame(b"[" * 1_000_000))
@example(b"\xff\xff\xff\xff" + b"[" * 1000)
@example(b"\0\0\0\x01")
def test_a_frame_is_read_or_given_up(data: bytes) -> None:
    with costs_at_most(len(data)), suppress(EOFError, ValueError):
        receive(data)


@settings(max_examples=1000, derandomize=True, deadline=None)
@given(TAGGED)
@example(["e", [["l", []]]])
@example(["d", [[["d", []], ["n"]]]])
@example(["i", "0x" + "f" * 1_000_000])
def test_a_value_is_plain_data_or_given_up(data: Any) -> None:
    resolved: list[int] = []
    with costs_at_most(4_000_000), suppress(ValueError):
        value = wire.decode(data, lambda number: resolved.append(number))
        assert type(value) in (
            type(None),
            bool,
            int,
            float,
            complex,
            str,
            bytes,
            bytearray,
            list,
            tuple,
            set,
            frozenset,
            dict,
        )
    assert all(isinstance(number, int) for number in resolved)


def test_a_value_too_deep_to_be_read_is_given_up() -> None:
    deep: Any = ["n"]
    for _ in range(2000):
        deep = ["l", [deep]]
    with pytest.raises(ValueError, match="could not be read"):
        wire.decode(deep, lambda number: None)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(PLAIN)
def test_plain_data_comes_back_as_it_went(value: Any) -> None:
    assert wire.decode(json.loads(json.dumps(wire.encode(value, lambda _: 0))), lambda _: None) == value


@settings(max_examples=500, derandomize=True, deadline=None)
@given(TAGGED | st.fixed_dictionaries({}, optional={"error": TAGGED, "value": TAGGED, "args": TAGGED}))
@example({"error": ["SystemExit", "0"]})
@example({"error": "x"})
@example({"value": ["o", 1]})
def test_no_answer_of_the_code_makes_a_check_pass_or_its_process_end(answer: Any) -> None:
    requests, replies, verdicts = os.pipe(), os.pipe(), os.pipe()
    with os.fdopen(requests[0], "rb"), os.fdopen(verdicts[0], "rb") as told:
        for _ in range(2):
            wire.send(replies[1], answer)
        os.close(replies[1])
        job = {"functions": ["f"], "asserts": ["assert f(1) == object"], "setup": ""}
        check.run_checks(job, check.Caller(requests[1], replies[0], 5.0), verdicts[1])
        for fd in (requests[1], replies[0], verdicts[1]):
            os.close(fd)
        assert json.loads(told.readline()) == {"passed": False}


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit", "BaseException", "__import__", "UnicodeError"])
def test_what_the_code_raises_is_an_ordinary_exception(name: str) -> None:
    assert isinstance(check._rebuild([name, "x"]), Exception)
