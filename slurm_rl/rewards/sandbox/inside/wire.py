"""How values cross between the process of the code and the process of its checks: as plain data.

    5 -> ["i", "0x5"]        (1, "a") -> ["u", [["i", "0x1"], ["s", "a"]]]        an object -> ["o", 3]

Only builtin types are rebuilt, exactly, so a value that arrives cannot bring an `__eq__` of its own.
A frame is its length in 4 bytes, big-endian, then JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

MAX_FRAME = 16 * 1024 * 1024


class NotPlain(BaseException):
    """A value that cannot cross. Not an Exception, so that no `except` of a test hides it."""


def send(fd: int, message: Any) -> None:
    """Write one frame. Raises OSError when nobody reads any more."""
    body = json.dumps(message).encode()
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> Any:
    """Read one frame. Raises EOFError at the end, ValueError for one too long, too deep or not JSON."""
    length = int.from_bytes(_read(fd, 4), "big")
    if length > MAX_FRAME:
        raise ValueError("a value of the code is too large")
    try:
        return json.loads(_read(fd, length))
    except RecursionError:
        raise ValueError("a value of the code is too deep") from None


def _read(fd: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = os.read(fd, min(length - len(data), 1 << 16))
        if not chunk:
            raise EOFError("the code has ended")
        data += chunk
    return bytes(data)


def encode(value: Any, refer: Callable[[Any], int]) -> list[Any]:
    """Turn a value into JSON; objects that are not plain go through `refer`, which numbers or refuses them."""
    match value:
        case None:
            return ["n"]
        case bool():
            return ["t", bool(value)]
        case int():
            return ["i", hex(value)]
        case float():
            return ["f", float(value)]
        case complex():
            return ["c", value.real, value.imag]
        case str():
            return ["s", str.__str__(value)]
        case bytes() | bytearray():
            return ["b" if isinstance(value, bytes) else "a", bytes(value).hex()]
        case list() | tuple() | set() | frozenset():
            return [_COLLECTIONS[_base(value)], [encode(item, refer) for item in value]]
        case dict():
            return ["d", [[encode(key, refer), encode(item, refer)] for key, item in value.items()]]
    return ["o", refer(value)]


def decode(data: Any, resolve: Callable[[int], Any]) -> Any:
    """The inverse of `encode`; `resolve` finds the object of a number. Raises ValueError for anything else."""
    try:
        return _decode(data, resolve)
    except (TypeError, RecursionError):  # a list as a key, or lists in lists without end
        raise ValueError("a value of the code could not be read") from None


def _decode(data: Any, resolve: Callable[[int], Any]) -> Any:
    match data:
        case ["n"]:
            return None
        case ["t", bool(value)] | ["s", str(value)]:
            return value
        case ["i", str(digits)]:
            return int(digits, 16)
        case ["f", float(value)]:
            return value
        case ["c", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case ["b" | "a" as kind, str(digits)]:
            return bytes.fromhex(digits) if kind == "b" else bytearray.fromhex(digits)
        case ["l" | "u" | "e" | "z" as kind, list(items)]:
            return _BUILDERS[kind](_decode(item, resolve) for item in items)
        case ["d", list(pairs)]:
            return {_decode(key, resolve): _decode(item, resolve) for key, item in pairs}
        case ["o", int(number)]:
            return resolve(number)
    raise ValueError("a value of the code could not be read")


_COLLECTIONS: dict[type, str] = {list: "l", tuple: "u", set: "e", frozenset: "z"}
_BUILDERS: dict[str, Callable[[Any], Any]] = {"l": list, "u": tuple, "e": set, "z": frozenset}


def _base(value: Any) -> type:
    return next(base for base in _COLLECTIONS if isinstance(value, base))
