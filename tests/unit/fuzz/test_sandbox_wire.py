import json
import os
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl.rewards.sandbox.inside import check, wire
from tests.unit.fuzz.values import costs_at_most, json_values, mangled

KINDS = ["list", "dict", "set", "bytearray", "deque", "Counter", "OrderedDict", "defaultdict"]
TAGS = st.sampled_from(["n", "t", "i", "f", "c", "s", "b", "u", "z", "m", "y", "v", "x", "r", "o", "?", *KINDS])
PARTS = st.sampled_from(
    ["0x5", "ff", "-0x1", "0x" + "f" * 99, 1.5, True, 7, [["n"], ["list", None, []]], "builtins.range", ["a"]]
)
TAGGED = st.recursive(
    st.tuples(TAGS, PARTS | json_values(1)).map(list) | TAGS.map(lambda tag: [tag]) | json_values(2),
    lambda inner: (
        st.tuples(TAGS, st.lists(inner, max_size=3) | inner).map(list)
        | st.tuples(TAGS, PARTS | st.none(), st.lists(inner, max_size=3)).map(list)
    ),
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
    """Return the result of reading these bytes from a closed connection."""
    here, there = os.pipe()
    # A pipe holds 64 KiB; longer writes block until the other side reads.
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


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.binary(max_size=64) | TAGGED.map(lambda tree: frame(json.dumps(tree).encode())).flatmap(mangled))
@example(frame(b"[" * 1_000_000))
@example(b"\xff\xff\xff\xff" + b"[" * 1000)
@example(b"\0\0\0\x01")
def test_frame_is_read_or_rejected(data: bytes) -> None:
    with costs_at_most(len(data)), suppress(EOFError, ValueError):
        receive(data)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(TAGGED)
@example(["set", None, [["list", None, []]]])
@example(["dict", None, [["u", [["dict", None, []], ["n"]]]]])
@example(["x", "builtins.eval", [["s", "1"]]])
@example(["m", "x", ["__class__"], [["n"]]])
@example(["dict", None, [["u", [["r", 0], ["n"]]]]])
@example(["i", "0x" + "f" * 1_000_000])
def test_value_is_plain_data_or_rejected(data: Any) -> None:
    resolved: list[int] = []
    with costs_at_most(4_000_000), suppress(ValueError):
        value = wire.Decoder(lambda number: resolved.append(number)).decode(data)
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
            deque,
            Counter,
            OrderedDict,
            defaultdict,
            range,
            type(iter([])),
            type({}.keys()),
            type({}.values()),
            type({}.items()),
        ) or isinstance(value, tuple)
    assert all(isinstance(number, int) for number in resolved)


def test_too_deep_value_is_rejected() -> None:
    deep: Any = ["n"]
    for _ in range(2000):
        deep = ["list", None, [deep]]
    with pytest.raises(ValueError, match="could not be read"):
        wire.Decoder(lambda number: None).decode(deep)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(PLAIN)
def test_plain_data_survives_round_trip(value: Any) -> None:
    tree = json.loads(json.dumps(wire.Encoder(lambda *_: ["o", 0]).encode(value)))
    assert wire.Decoder(lambda _: None).decode(tree) == value


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    TAGGED
    | st.fixed_dictionaries({}, optional={"error": TAGGED, "value": TAGGED, "objects": st.lists(TAGGED, max_size=2)})
)
@example({"error": ["SystemExit", [["i", "0x0"]]]})
@example({"error": "x"})
@example({"value": ["o", 1], "objects": []})
def test_answers_of_code_cannot_pass_check_or_end_process(answer: Any) -> None:
    requests, replies, verdicts = os.pipe(), os.pipe(), os.pipe()
    with os.fdopen(requests[0], "rb"), os.fdopen(verdicts[0], "rb") as told:
        for _ in range(2):
            wire.send(replies[1], wire.pack(answer))
        os.close(replies[1])
        job = {"functions": ["f"], "asserts": ["assert f(1) == object"], "setup": ""}
        check.run_checks(job, check.Caller(requests[1], replies[0], 5.0), verdicts[1])
        for fd in (requests[1], replies[0], verdicts[1]):
            os.close(fd)
        assert json.loads(told.readline()) == {"passed": False}


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit", "BaseException", "__import__", "UnicodeError"])
def test_exceptions_of_code_are_ordinary(name: str) -> None:
    assert isinstance(check._rebuild(name, ["x"]), Exception)
