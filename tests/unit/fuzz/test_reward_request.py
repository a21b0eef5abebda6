import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_rl.errors import RewardError
from slurm_rl.rewards.protocol import RequestError, build_answer, parse_answer, parse_request
from slurm_rl.rewards.queries import build_items
from slurm_rl.rewards.results import RewardItem, RewardResult
from tests.unit.fuzz.values import costs_at_most, json_values, mangled

MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": json_values(3)}))
MARKED = st.sampled_from(
    ["", "<|im_start|>assistant\n7<|im_end|>", "</s>" * 9, '[{"role": "user", "content": "3"}]', "[" * 200_000]
)
TEXTS = st.lists(st.text(st.characters(), max_size=8) | MARKED | json_values(2), max_size=3)
# Almost valid requests: wrong keys, lengths or types.
REQUESTS = st.fixed_dictionaries(
    {"query": TEXTS},
    optional={
        "prompts": TEXTS | json_values(3),
        "labels": TEXTS | json_values(3),
        "truncated": st.lists(st.booleans(), max_size=3) | json_values(2),
        "messages": st.lists(MESSAGES | st.none(), max_size=3) | json_values(3),
        "explain": st.booleans(),
    },
)
BODIES = st.binary(max_size=64) | REQUESTS.map(lambda tree: json.dumps(tree).encode()).flatmap(mangled)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(BODIES)
@example(b"[" * 1_000_000)
@example(b'{"query": ["' + b"\\ud800" * 1000 + b'"], "labels": ["1"]}')
@example(b'{"query": ["a"], "labels": [' + b"9" * 100_000 + b"]}")
@example(json.dumps({"query": ["a"], "prompts": ["[" * 500_000 + '"role"'], "labels": ["1"]}).encode())
def test_body_is_request_or_is_refused(body: bytes) -> None:
    with costs_at_most(len(body)):
        try:
            asked = parse_request(body)
            items = build_items(asked, {"": "7"})
        except RequestError as error:
            assert 400 <= error.status < 500 and str(error)
            return
    results = [RewardResult(item=item, value=1.0, parts={"math": 1.0}) for item in items]
    answer = json.dumps(build_answer(results, explain=asked.explain, failure_reward=0.0), allow_nan=False)
    assert [result.value for result in parse_answer(answer.encode(), items)] == [1.0] * len(asked.queries)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.binary(max_size=64) | json_values(12).map(lambda tree: json.dumps(tree).encode()).flatmap(mangled))
@example(b'{"query": [], "rewards": [' + b"9" * 100_000 + b"]}")
def test_foreign_answer_is_read_or_refused(body: bytes) -> None:
    items = [RewardItem(prompt="", completion="7", answer="7")]
    with costs_at_most(len(body)):
        try:
            [result] = parse_answer(body, items)
        except RewardError:
            return
    assert (result.value is None) == (result.failure is not None)
