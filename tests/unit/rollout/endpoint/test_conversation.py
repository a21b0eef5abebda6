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


def test_continued_dialogue_is_not_rendered_again() -> None:
    conversation = Conversation(make_renderer())
    first = ask(conversation, [FIRST], "  6 ")
    # The program stripped the reply; its sampled tokens stay.
    second = ask(conversation, [FIRST, answer("6"), LESS], "4")
    assert second.place.parent is first
    assert text(second.token_ids) == "<user>guess</user><assistant>  6 </assistant><user><</user><assistant>4"
    [branch] = conversation.branches()
    assert branch == [first, second]


def test_contents_without_template_are_concatenated() -> None:
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
def test_changed_message_starts_branch(messages: list[dict[str, Any]]) -> None:
    conversation = Conversation(make_renderer())
    ask(conversation, [FIRST], "6")
    other = ask(conversation, messages, "4")
    assert other.place.parent is None and len(conversation.branches()) == 2


def test_branches_share_common_turn() -> None:
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


def test_record_is_independent_of_request_order() -> None:
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


def test_unread_reply_is_excluded_unless_continued() -> None:
    conversation = Conversation(make_renderer())
    ask(conversation, [FIRST], "lost", heard=False)
    asked_again = ask(conversation, [FIRST], "6")
    assert conversation.branches() == [[asked_again]]


def test_empty_message_forms_are_equal() -> None:
    ways: list[dict[str, Any]] = [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "assistant", "content": []},
        {"role": "assistant"},
    ]
    assert len({tuple(message_keys([way])) for way in ways}) == 1
    assert len({tuple(message_keys([way])) for way in ({"role": "user", "content": "a"}, *ways)}) == 2
