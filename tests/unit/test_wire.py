import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_rl.run_dir.wire import Outbox, Wire, pack

MESSAGES: Any = st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=10)


@given(st.lists(MESSAGES, min_size=1), st.integers(1, 50))
def test_messages_survive_any_fragmentation(messages: list[Any], size: int) -> None:
    ours, theirs = Wire.pair()
    data, found = b"".join(map(pack, messages)), []
    with theirs:
        for at in range(0, len(data), size):
            theirs.sendall(data[at : at + size])
            found += ours.receive()
    assert found == messages
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def test_sender_does_not_block_and_order_is_kept() -> None:
    ours, theirs = Wire.pair()
    outbox = Outbox(ours)
    messages = [(at, bytes(at % 7 * 10_000)) for at in range(500)]
    done = threading.Event()

    def send() -> None:
        for message in messages:
            outbox.put(message)
        done.set()

    threading.Thread(target=send, daemon=True).start()
    assert done.wait(30), "15 MB were sent, and nobody read"
    messages += [("while it empties", bytes(at)) for at in range(2000)]
    later = threading.Thread(target=lambda: [outbox.put(message) for message in messages[500:]], daemon=True)
    later.start()
    other, found = Wire(theirs), []
    while len(found) < len(messages):
        found += other.receive()
    assert found == messages
    outbox.put("after it was full")
    assert other.receive() == ["after it was full"]


def test_messages_to_closed_side_are_dropped() -> None:
    ours, theirs = Wire.pair()
    outbox = Outbox(ours)
    theirs.close()
    for _ in range(3):
        outbox.put("a word")
    with pytest.raises((EOFError, OSError)):
        ours.receive()
    outbox.close()
