"""Which recorded turn a request continues, and what is trained on where there are several ways."""

from typing import Any

import pytest

from slurm_rl.rollout.endpoint.conversation import Conversation, Said, message_keys
from tests.unit.rollout.endpoint.kit import make_renderer, sampled

FIRST = {"role": "user", "content": "guess"}
LESS = {"role": "user", "content": "<"}


def ask(conversation: Conversation, messages: list[dict[str, Any]], reply: str, *, heard: bool = True) -> Said:
    said = conversation.add(conversation.place(conversation.read(messages)), sampled(reply))
    said.heard = heard
    return said


def text(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def answer(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_a_dialogue_that_goes_on_is_never_rendered_again() -> None:
    conversation = Conversation(make_renderer())
    first = ask(conversation, [FIRST], "  6 ")
    # The program stripped what was sampled; its tokens stay.
    second = ask(conversation, [FIRST, answer("6"), LESS], "4")
    assert second.place.parent is first
    assert text(second.token_ids) == "<user>guess</user><assistant>  6 </assistant><user><</user><assistant>4"
    [branch] = conversation.branches()
    assert branch == [first, second]


def test_without_a_template_contents_follow_each_other() -> None:
    conversation = Conversation(make_renderer(chat=False))
    ask(conversation, [FIRST], "6")
    assert text(ask(conversation, [FIRST, answer("6"), LESS], "4").token_ids) == "guess6<4"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "short"}, FIRST, answer("6"), LESS],
        [FIRST, answer("7"), LESS],
        [FIRST, answer("6"), LESS, answer("an example"), LESS],
        [FIRST, answer("6")],
    ],
    ids=["another head", "another reply", "a reply nobody sampled", "nothing new"],
)
def test_whatever_was_not_said_so_begins_a_branch(messages: list[dict[str, Any]]) -> None:
    conversation = Conversation(make_renderer())
    ask(conversation, [FIRST], "6")
    other = ask(conversation, messages, "4")
    assert other.place.parent is None and len(conversation.branches()) == 2


def test_two_ways_from_one_turn_share_it_once() -> None:
    conversation = Conversation(make_renderer())
    first = ask(conversation, [FIRST], "6")
    left = ask(conversation, [FIRST, answer("6"), LESS], "4")
    right = ask(conversation, [FIRST, answer("6"), {"role": "user", "content": ">"}], "8")
    branches = conversation.branches()
    assert sorted(len(branch) for branch in branches) == [1, 2]
    assert [said for branch in branches for said in branch].count(first) == 1
    assert {said for branch in branches for said in branch} == {first, left, right}
    alone = next(branch for branch in branches if len(branch) == 1)[0]
    assert text(alone.place.context).startswith("<user>guess</user><assistant>6</assistant>")


def test_the_record_is_the_same_in_any_order_of_requests() -> None:
    ways = [[FIRST, answer("6"), {"role": "user", "content": content}] for content in "<>!"]
    found = []
    for order in (ways, ways[::-1]):
        conversation = Conversation(make_renderer())
        ask(conversation, [FIRST], "6")
        for messages in order:
            ask(conversation, messages, "4")
        found.append([[said.place.name for said in branch] for branch in conversation.branches()])
    assert found[0] == found[1]
    names = [name for branch in found[0] for name in branch]
    assert len(names) == len(set(names)) == 4


def test_what_nobody_heard_is_no_part_of_it_unless_it_was_gone_on_from() -> None:
    conversation = Conversation(make_renderer())
    ask(conversation, [FIRST], "lost", heard=False)
    asked_again = ask(conversation, [FIRST], "6")
    assert conversation.branches() == [[asked_again]]


def test_a_message_is_the_same_however_it_says_nothing() -> None:
    ways: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "assistant", "content": []},
        {"role": "assistant"},
    ]
    assert len({tuple(message_keys([way])) for way in ways}) == 1
    assert len({tuple(message_keys([way])) for way in ({"role": "user", "content": "a"}, *ways)}) == 2
