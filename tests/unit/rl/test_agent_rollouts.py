"""Batches of episodes that programs play, with a scripted engine."""

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_rl.algorithms.train_sequences import build_plain_sequences
from slurm_rl.data.groups import Group, SamplingSpec
from slurm_rl.data.tokenize import EncodedPrompt
from slurm_rl.envs.tools import read_arguments
from slurm_rl.errors import StopRequested, TrainingError
from slurm_rl.node.stop import Timer
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.rollout.agent_trajectory import drop_expensive
from slurm_rl.rollout.agents import AgentRollouts
from slurm_rl.rollout.endpoint.conversation import DialogueRenderer
from slurm_rl.rollout.endpoint.episode import Bounds
from slurm_rl.rollout.endpoint.requests import SamplingRule
from slurm_rl.rollout.endpoint.residents import Residents
from slurm_rl.rollout.engine import Generated, GenerationRequest
from slurm_rl.rollout.response import Response
from slurm_rl.trainers.grpo.step_metrics import sampling_metrics
from slurm_rl.workers.ray_driver import Actor
from tests.unit.rl.episode_kit import RemoteEngine
from tests.unit.rollout.endpoint.kit import BOUNDS, make_renderer, sampled

SPEC = SamplingSpec(num_completions=2, max_tokens=12, temperature=1.0, top_p=1.0, seed=7)
# Plain HTTP: importing openai takes a second. A resident agent has address and key of each row.
AGENT = """
import json, os, sys, threading, urllib.request
def ask(messages, base_url=None, api_key=None):
    request = urllib.request.Request((base_url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + (api_key or os.environ["OPENAI_API_KEY"])})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
def play(row, *address):
    messages = [{"role": "user", "content": row["prompt"]}]
    for turn in range(3):
        reply = ask(messages, *address)
        if reply == row["answer"]:
            return {"reward": 1.0, "scores": {"turns": turn + 1}}
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "no"}]
    return {"reward": 0.0}
"""
ROW = "row = json.load(sys.stdin); messages = [{'role': 'user', 'content': row['prompt']}]\n"
GAME = "print(json.dumps(play(row)))"


class Engine(RemoteEngine):
    """A sampler with a single engine, itself: it replies `a`, `b`, `c` by the number of rejections in the prompt."""

    def __init__(self, say: Callable[[str], str] = lambda text: "abc"[text.count("no")]) -> None:
        self.say = say
        self.cluster: Any = SimpleNamespace(stop=self, while_waiting=lambda: None)
        self.asked: list[GenerationRequest] = []
        self.is_stopped = False
        self.engines, self.supervisor, self.timeout_s = [Actor("rollout-0", self)], None, 60.0
        self._ended: queue.SimpleQueue[Generated] = queue.SimpleQueue()

    @property
    def seeds(self) -> list[int]:
        return sorted(request.seed for request in self.asked)

    def check(self) -> None:
        if self.is_stopped:
            raise StopRequested("stopped")

    def is_set(self) -> bool:
        return self.is_stopped

    def on_submit(self, client: str, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            self.asked.append(request)
            text = "".join(map(chr, request.prompt.token_ids))
            self._ended.put((request.name, Response.pack(sampled(self.say(text)))))

    def finished(self, client: str) -> list[Generated]:
        return [self._ended.get(timeout=60)]


class Scorer:
    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [RewardResult(item=item, value=float(item.completion == item.answer)) for item in items]


def play(
    code: str, answers: Sequence[str], *, engine: Engine | None = None, rows: int = 0, **options: Any
) -> tuple[list[Group], Any]:
    prompts = [EncodedPrompt(index=i, token_ids=[ord("?")], text="?", answer=text) for i, text in enumerate(answers)]
    argv, used = [sys.executable, "-c", AGENT + (code if rows else ROW + code)], engine or Engine()
    return play_prompts(prompts, argv, used, rows=rows, **options), used


def play_prompts(
    prompts: Sequence[EncodedPrompt],
    argv: Sequence[str],
    engine: Any,
    *,
    scorer: Scorer | None = None,
    bounds: Bounds = BOUNDS,
    within_s: float | None = None,
    rows: int = 0,
    renderer: DialogueRenderer | None = None,
    turn_tokens: int = 4,
) -> list[Group]:
    rule = SamplingRule(1.0, 1.0, turn_tokens)
    limits: Any = {"argv": argv, "at_once": 4, "rows": rows, "timeout_s": 300.0}
    programs = AgentRollouts(engine, renderer or make_renderer(chat=False), rule, bounds, scorer, **limits)
    return programs.finish(programs.start(prompts, SPEC), Timer(), within_s)


def letters(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def test_agents_train_on_every_sampled_token() -> None:
    groups, engine = play(GAME, ["a", "c"])
    short, long = groups[0].completions[0], groups[1].completions[0]
    assert letters(short.token_ids) == "a" and letters(long.token_ids) == "anobnoc"
    assert [(turn.reply, turn.observation) for turn in long.turns] == [("a", "no"), ("b", "no"), ("c", "")]
    # The dialogue starts with the row's prompt, so no branch repeats it.
    assert long.branches == []
    assert [result.value for group in groups for result in group.results] == [1.0] * 4
    assert groups[1].results[0].parts == {"turns": 3.0}
    [sequence, _] = build_plain_sequences(groups[1:])
    assert sequence.trained is not None and letters(sequence.token_ids[sequence.trained]) == "abc"
    assert len(set(engine.seeds)) == len(engine.seeds) == 2 + 6
    assert play(GAME, ["a", "c"])[1].seeds == engine.seeds


def test_configured_reward_scores_agents_without_reward() -> None:
    groups, _ = play("ask(messages)", ["a", "b"], scorer=Scorer())
    assert [result.value for group in groups for result in group.results] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("code", "cause", "told"),
    [
        ("ask(messages)", "bad score", "no reward is configured"),
        ("print('{\"reward\": 1}')", "exception", "requested no reply"),
        ("os.environ['OPENAI_API_KEY'] = 'other'\nask(messages)", "exception", "401"),
    ],
)
def test_failed_agent_has_no_reward(code: str, cause: str, told: str) -> None:
    [group], _ = play(code, ["a"])
    assert all(result.value is None and result.failure == cause and told in result.detail for result in group.results)
    metrics = sampling_metrics([group])
    assert metrics["reward/failed"] == 2.0 and "reward/mean" not in metrics


def test_agent_over_limit_is_truncated_and_scored() -> None:
    [group], _ = play(GAME, ["c"], bounds=Bounds(2, 200))
    assert [result.value for result in group.results] == [0.0, 0.0]
    assert all(completion.truncated and len(completion.turns) == 2 for completion in group.completions)
    [group], _ = play(GAME, ["b"], bounds=Bounds(2, 6), scorer=Scorer())
    assert [result.value for result in group.results] == [0.0, 0.0]  # the reply was `a`


def test_stop_signal_ends_all_agents() -> None:
    engine = Engine()
    threading.Timer(1.0, lambda: setattr(engine, "is_stopped", True)).start()
    with pytest.raises(StopRequested):
        play("import time; time.sleep(3600)", ["a"] * 4, engine=engine)


def test_finish_within_limit_raises() -> None:
    with pytest.raises(TrainingError, match="the programs must end within"):
        play("import time; time.sleep(3600)", ["a"], within_s=0.5)


def test_agent_gets_all_fields_of_row() -> None:
    keys = {"episode", "base_url", "api_key", "prompt", "messages", "answer", "index", "info", "seed"}
    groups, _ = play(f"assert set(row) == {keys}, row\n{GAME}", ["a"])
    assert groups[0].results[0].failure is None


@pytest.mark.parametrize("rows", [1, 3])
def test_resident_agent_plays_same_episodes(rows: int) -> None:
    one_by_one = """
for line in sys.stdin:
    row = json.loads(line); print(json.dumps(play(row, row["base_url"], row["api_key"])), flush=True)
"""
    at_once = """
def run(row):
    verdict = play(row, row["base_url"], row["api_key"])
    sys.stdout.write(json.dumps({"episode": row["episode"], **verdict}) + "\\n"); sys.stdout.flush()
for line in sys.stdin: threading.Thread(target=run, args=(json.loads(line),)).start()
"""
    answers = ["a", "c", "b"]
    apart, _ = play(GAME, answers)
    staying, _ = play(one_by_one if rows == 1 else at_once, answers, rows=rows)
    for ours, theirs in zip(staying, apart, strict=True):
        assert ours.completions == theirs.completions
        assert [one.value for one in ours.results] == [one.value for one in theirs.results]


@pytest.mark.parametrize(
    ("code", "cause", "told"),
    [
        ("json.loads('{')", "exception", "exit code 1"),
        ("os.abort()", "crash", "SIGABRT"),
        ("raise SystemExit(0)", "exception", "exit code 0"),
        ("print(json.dumps({'error': 'no such door'}), flush=True)", "exception", "no such door"),
        ('print(\'{"reward": "much"}\', flush=True)', "bad score", "finite number"),
    ],
)
def test_resident_agent_failure_fails_one_episode(code: str, cause: str, told: str) -> None:
    lines = f"""
for line in sys.stdin:
    row = json.loads(line); verdict = play(row, row["base_url"], row["api_key"])
    if row["answer"] == "b":
        {code}
    else:
        print(json.dumps(verdict), flush=True)
"""
    groups, _ = play(lines, ["b", "a", "c"], rows=1)
    assert [one.value for group in groups[1:] for one in group.results] == [1.0] * 4
    assert all(one.failure == cause and told in one.detail for one in groups[0].results)


def test_hung_resident_agent_is_replaced_at_deadline() -> None:
    residents = Residents([sys.executable, "-c", "import sys, time\nfor line in sys.stdin: time.sleep(3600)"], {}, 1)
    for _ in range(2):
        found = residents.play("1", {"episode": "1"}, 0.5, threading.Event())
        assert isinstance(found, Failure) and found.cause == "hang"
    assert residents._load == {}
    residents.close()


def test_drop_expensive_bounds_schema_check() -> None:
    """A pattern with exponential backtracking would block the trainer."""
    hostile = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"]}
    wrong, _ = read_arguments('{"a": "' + "a" * 40 + '!"}', drop_expensive(hostile))
    assert wrong is None
    assert read_arguments('{"a": 3}', drop_expensive(hostile))[0] is not None, "types are still checked"
