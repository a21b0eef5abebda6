"""How values cross between the process of the code and the process of its checks: as plain data.

    5 -> ["i", "0x5"]        (1, "a") -> ["u", [["i", "0x1"], ["s", "a"]]]        an object -> ["o", 3]
    x = [1]; (x, x) -> ["u", [["list", null, [["i", "0x1"]]], ["r", 0]]]          one list, so also one there

Only types of Python itself are rebuilt, exactly, so a value that arrives cannot bring an `__eq__` of its own.
A frame is its length in 4 bytes, big-endian, then JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from typing import Any

MAX_FRAME = 16 * 1024 * 1024


class NotPlain(BaseException):
    """A value that cannot cross. Not an Exception, so that no `except` of a test hides it."""


def pack(message: Any) -> bytes:
    """Return one frame. Raises ValueError for one too long, RecursionError for one too deep."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise ValueError("a value of the code is too large")
    return len(body).to_bytes(4, "big") + body


def send(fd: int, frame: bytes) -> None:
    """Write one frame; raises OSError if the reader has closed."""
    data = memoryview(frame)
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


_FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)}
_MUTABLE: dict[str, Callable[[Any], Any]] = {
    "deque": lambda maxlen: deque(maxlen=maxlen),
    "Counter": lambda _: Counter(),
    "OrderedDict": lambda _: OrderedDict(),
    "defaultdict": lambda factory: defaultdict(_FACTORIES.get(factory)),
    "dict": lambda _: {},
    "list": lambda _: [],
    "set": lambda _: set(),
    "bytearray": lambda _: bytearray(),
}
"""Name to a function that makes an empty one; subclasses before their builtin base."""
_BASES = {"deque": deque, "Counter": Counter, "OrderedDict": OrderedDict, "defaultdict": defaultdict} | {
    kind.__name__: kind for kind in (dict, list, set, bytearray)
}
_VALUES: dict[str, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys(
        (
            *("builtins.range", "fractions.Fraction", "decimal.Decimal"),
            *("datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta"),
        ),
        lambda value: value.__reduce__()[1],
    ),
    "datetime.timezone": lambda value: (value.utcoffset(None),),
}
"""Immutable types of the standard library, with the arguments that rebuild a value."""
_VIEWS: dict[type, tuple[str, Callable[[list[Any]], Any]]] = {
    type({}.keys()): ("keys", lambda items: dict.fromkeys(items).keys()),
    type({}.values()): ("values", lambda items: dict(enumerate(items)).values()),
    type({}.items()): ("items", lambda items: dict(items).items()),
}


class Encoder:
    """Encodes the values of one message as JSON.

    Args:
        refer: returns the JSON of an object that is not plain data, or refuses it.
        objects: containers that the other side has; it gets references to them.
    """

    def __init__(self, refer: Callable[[Any, Encoder], list[Any]], objects: Iterable[Any] = ()) -> None:
        self._refer = refer
        self.objects = list(objects)
        """The mutable containers of the message, at the same places as the decoder's."""
        self._places = {id(one): place for place, one in enumerate(self.objects)}

    def encode(self, value: Any) -> list[Any]:
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
            case bytes():
                return ["b", bytes(value).hex()]
            case frozenset():
                return ["z", self.encode_all(value)]
            case tuple() if hasattr(value, "_fields"):
                return ["m", type(value).__name__, list(value._fields), self.encode_all(value)]
            case tuple():
                return ["u", self.encode_all(value)]
        kind = next((kind for kind, base in _BASES.items() if isinstance(value, base)), None)
        return self._encode_other(value) if kind is None else self._encode_container(kind, value)

    def encode_all(self, values: Iterable[Any]) -> list[Any]:
        return [self.encode(value) for value in values]

    def encode_content(self, container: Any) -> Any:
        if isinstance(container, bytearray):
            return container.hex()
        return self.encode_all(container.items() if isinstance(container, dict) else container)

    def _encode_container(self, kind: str, value: Any) -> list[Any]:
        if id(value) in self._places:
            return ["r", self._places[id(value)]]
        self._places[id(value)] = len(self.objects)
        self.objects.append(value)
        extra = None
        if kind == "deque":
            extra = value.maxlen
        elif kind == "defaultdict":
            extra = getattr(value.default_factory, "__name__", None)
        return [kind, extra, self.encode_content(value)]

    def _encode_other(self, value: Any) -> list[Any]:
        if type(value) in _VIEWS:
            return ["v", _VIEWS[type(value)][0], self.encode_all(value)]
        for base in type(value).__mro__:
            name = f"{base.__module__}.{base.__qualname__}"
            if name in _VALUES and getattr(sys.modules.get(base.__module__), base.__qualname__, None) is base:
                return ["x", name, self.encode_all(_VALUES[name](value))]
        return self._refer(value, self)


class Decoder:
    """The inverse of `Encoder`; `resolve` finds the object of a number."""

    def __init__(self, resolve: Callable[[int], Any], objects: Iterable[Any] = ()) -> None:
        self._resolve = resolve
        self.objects = list(objects)

    def decode(self, data: Any) -> Any:
        """Return the value; raise ValueError if no encoder writes this, or Python cannot rebuild it."""
        try:
            return self._decode(data)
        except Exception as error:  # a list as a key, lists in lists without end, a date in month 13, ...
            raise ValueError(f"a value of the code could not be read: {error}") from None

    def _decode(self, data: Any) -> Any:
        match data:
            case ["n"]:
                return None
            case ["t", bool(value)] | ["s", str(value)] | ["f", float(value)]:
                return value
            case ["i", str(digits)]:
                return int(digits, 16)
            case ["c", float(real), float(imaginary)]:
                return complex(real, imaginary)
            case ["b", str(digits)]:
                return bytes.fromhex(digits)
            case ["u" | "z" as kind, list(items)]:
                return (tuple if kind == "u" else frozenset)(map(self._decode, items))
            case ["m", str(name), list(fields), list(items)]:
                return namedtuple(name, fields)(*map(self._decode, items))
            case ["y", list(items)]:
                return iter([*map(self._decode, items)])
            case ["v", str(name), list(items)]:
                return dict(_VIEWS.values())[name]([*map(self._decode, items)])
            case ["x", str(name), list(items)] if name in _VALUES:
                module, _, kind = name.partition(".")
                return getattr(importlib.import_module(module), kind)(*map(self._decode, items))
            case ["r", int(place)] if place >= 0:
                return self.objects[place]
            case ["o", int(number)] if number >= 0:
                return self._resolve(number)
            case [str(kind), extra, content] if kind in _MUTABLE:
                self.objects.append(_MUTABLE[kind](extra))
                return self.fill(self.objects[-1], content)
        raise ValueError("it has no known form")

    def fill(self, container: Any, content: Any) -> Any:
        """Give a mutable container these items and return it."""
        if isinstance(container, bytearray):
            container[:] = bytes.fromhex(content)
            return container
        items = [*map(self._decode_pair if isinstance(container, dict) else self._decode, content)]
        container.clear()
        if isinstance(container, dict):
            for key, value in items:
                container[key] = value
        elif isinstance(container, set):
            container.update(items)
        else:
            container.extend(items)
        return container

    def _decode_pair(self, data: Any) -> tuple[Any, Any]:
        match data:
            case ["u", [key, value]]:
                return self._decode(key), self._decode(value)
        raise ValueError("it has no known form")
