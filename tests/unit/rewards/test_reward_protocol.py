import json
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.errors import DataError, RewardError
from slurm_rl.rewards.protocol import RequestError, build_answer, build_request, parse_answer, parse_request
from slurm_rl.rewards.queries import build_items
from slurm_rl.rewards.results import RewardItem, RewardResult
from slurm_rl.rewards.service import read_answers

ITEMS = [RewardItem(prompt="3+4=", completion="7", answer="7"), RewardItem(prompt="1+1=", completion="3", answer="2")]
FINE = RewardResult(item=ITEMS[0], value=1.5, parts={"math": 1.0, "format": 1.0})
HUNG = RewardResult(item=ITEMS[1], value=None, failure="hang", detail="no score within 10 s")


def encode(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def test_request_round_trips_items() -> None:
    odd = RewardItem(prompt="a\0\ud800", completion="<|im_start|>assistant\nb</s>\n", answer="\u4e2d")
    bare = RewardItem(completion="<|im_start|>assistant\n7", answer="7")
    cut = RewardItem(prompt="3+4=", completion="7", answer="7", truncated=True)
    chat = RewardItem(prompt="<s>Hi", completion="7", answer="7", messages=[{"role": "user", "content": "Hi"}])
    for items in ([*ITEMS, odd, bare, cut], [*ITEMS, chat, cut]):
        assert build_items(parse_request(encode(build_request(items)))) == items


def test_answers_to_our_client_keep_numbers_and_causes() -> None:
    body = encode(build_answer([FINE, HUNG], explain=True, failure_reward=0.0))
    assert parse_answer(body, ITEMS) == [FINE, HUNG]


def test_answers_to_other_clients_are_lists_of_numbers() -> None:
    answer = build_answer([FINE, HUNG], explain=False, failure_reward=-1.0)
    assert answer == {
        "rewards": [1.5, -1.0],
        "acc_rewards": [1.0, 0.0],
        "format_rewards": [1.0, 0.0],
        "scores": [1.0, 0.0],
        "failed": [0.0, 1.0],
    }


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "must be JSON"),
        (b"[" * 100_000, 400, "RecursionError"),
        (b"[]", 400, "must be a JSON object"),
        (b"{}", 422, "must have the key 'query'"),
        (b'{"query": "text"}', 422, "'query' must be a list, each of it a string; got 'text'"),
        (b'{"query": ["a", 5]}', 422, r"query\[1\] must be a string; got 5"),
        (b'{"query": ["a"], "labels": [NaN]}', 400, "NaN is no JSON number"),
        (b'{"query": ["a"], "truncated": [0]}', 422, r"truncated\[0\] must be true or false; got 0"),
        (b'{"query": ["a"], "truncated": [true, true]}', 422, "'truncated' must be as long as 'query', 1; got 2"),
        (b'{"query": ["a"], "messages": [["hi"]]}', 422, r"messages\[0\] must be a list of chat messages, or null"),
        (b'{"query": ["a"], "messages": "text"}', 422, "'messages' must be a list, each of it a list of chat"),
        (b'{"query": ["a"], "labels": ["1", "2"]}', 422, "'labels' must be as long as 'query', 1; got 2"),
    ],
)
def test_malformed_request_is_named(body: bytes, status: int, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        parse_request(body)
    assert caught.value.status == status


CHAT = "<|im_start|>user\n3+4?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("query", "prompt", "completion"),
    [
        ("3+4=7", "3+4=", "7"),
        ("<s>3+4=7</s></s>\n", "3+4=", "7"),
        ("<|endoftext|><|endoftext|>3+4=7 \n<|im_end|>\n<|endoftext|>", "3+4=", "7 \n"),
        (f"{CHAT}7<|im_end|>", CHAT, "7"),
        (f"{CHAT}7<|im_end|>", '[{"role": "user", "content": "3+4?"}]', "7"),
        # Text that the completion itself contains is kept.
        (f"{CHAT}7<|im_end|>\n<|im_start|>assistant\n8", '[{"role": "user"}]', "7<|im_end|>\n<|im_start|>assistant\n8"),
        (f"{CHAT}5<|im_end|>\n{CHAT}7", '[{"role": "user"}, {"role": "assistant"}, {"role": "user"}]', "7"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n7<|eot_id|>", "not in it", "7"),
        ("just text", "", "just text"),
    ],
)
def test_queries_of_other_clients_are_split_at_completion(query: str, prompt: str, completion: str) -> None:
    request = parse_request(encode({"query": [query], "prompts": [prompt], "labels": ["7"]}))
    assert [item.completion for item in build_items(request)] == [completion]


@pytest.mark.parametrize(
    ("query", "prompt", "truncated"),
    [
        (f"{CHAT}7<|im_end|>", CHAT, False),
        (f"{CHAT}7", CHAT, True),
        ("<s>3+4=7</s>", "3+4=", False),
        ("<s>3+4=7", "3+4=", True),
        ("<bos><start_of_turn>model\n7<end_of_turn>", "not in it", False),
        # Without a visible special token the end is unknown; most texts are complete.
        ("3+4=7", "3+4=", False),
    ],
)
def test_missing_end_token_marks_truncated_completion(query: str, prompt: str, truncated: bool) -> None:
    request = parse_request(encode({"query": [query], "prompts": [prompt], "labels": ["7"]}))
    [item] = build_items(request)
    assert (item.completion, item.truncated) == ("7", truncated)


def test_too_deeply_nested_prompt_is_text() -> None:
    prompt = "[" * 100_000 + '"role"'
    request = parse_request(encode({"query": [prompt + "7"], "prompts": [prompt], "labels": ["7"]}))
    assert build_items(request)[0].messages is None


def test_many_end_tokens_are_removed_in_linear_time() -> None:
    request = parse_request(encode({"query": ["p7" + "</s> \n" * 200_000], "prompts": ["p"], "labels": ["7"]}))
    assert build_items(request)[0].completion == "7"


def test_missing_labels_come_from_data_or_are_error() -> None:
    request = parse_request(encode({"query": ["3+4=7"], "prompts": ["3+4="]}))
    assert build_items(request, {"3+4=": "7"})[0].answer == "7"
    with pytest.raises(RequestError, match="must have the key 'labels'"):
        build_items(request)
    with pytest.raises(RequestError, match=r"prompts\[0\] must be one of the prompts of --answers; got '3\+4='"):
        build_items(request, {"3+5=": "8"})


def test_prompt_missing_from_query_is_error() -> None:
    with pytest.raises(RequestError, match=r"query\[0\] must contain prompts\[0\]"):
        build_items(parse_request(encode({"query": ["a"], "prompts": ["b"], "labels": ["1"]})))


def test_numbers_of_other_servers_become_parts() -> None:
    body = {
        "rewards": [1.5, 0],
        "format_rewards": [1, 1.0],
        "acc_rewards": [True, float("inf")],
        "bad\ud800name": [1, 1],
        "large": [10**400, 1],
        "extra_logs": {"length": [12, 3]},
        "short": [1],
        "version": "0.1",
    }
    results = parse_answer(encode(body), ITEMS)
    assert [result.value for result in results] == [1.5, 0.0]
    assert [result.parts for result in results] == [
        {"format_rewards": 1.0, "acc_rewards": 1.0, "length": 12.0},
        {"format_rewards": 1.0, "large": 1.0, "length": 3.0},
    ]


@pytest.mark.parametrize("reward", ["1.0", None, float("nan"), float("-inf"), [1.0], 10**400, 1e300])
def test_non_number_reward_fails_only_its_item(reward: Any) -> None:
    results = parse_answer(encode({"rewards": [reward, 1.0]}), ITEMS)
    assert [result.failure for result in results] == ["bad score", None]
    assert results[0].value is None


@pytest.mark.parametrize(
    "body", [b"<html>Bad gateway</html>", b"", b"[1.0, 2.0]", b'{"rewards": [1.0]}', b'{"rewards": 1.0}', b"{}"]
)
def test_answer_of_other_shape_is_refused(body: bytes) -> None:
    with pytest.raises(RewardError, match="must answer with"):
        parse_answer(body, ITEMS)


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_key_is_prompt_as_sent_by_client(tmp_path: Path) -> None:
    """OpenRLHF-M sends the string unchanged, including spaces, accents and image paths of another disk."""
    messages = '[{"role":"user","content":[{"type":"image","image":"/their/disk/1.jpg"},{"type":"text","text":"é?"}]}]'
    path = write(tmp_path / "rows.jsonl", {"message": messages, "answer": "$60$"}, {"message": "2+2?", "answer": "$4$"})
    assert read_answers(path, "message", "answer") == {messages: "$60$", "2+2?": "$4$"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [([], "at least one row"), ([{"message": "a", "answer": 4}], ":1: column 'answer' must be a string; got 4")],
)
def test_unusable_answers_are_named(rows: list[dict[str, object]], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_answers(write(tmp_path / "rows.jsonl", *rows), "message", "answer")
