"""The judge's scorer and the real openai client against an HTTP server with faults (api_kit.py, a stand-in)."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slurm_rl.__main__ import main
from slurm_rl.config.judge import JudgeConfig
from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.launch.controller.create import create_run
from slurm_rl.launch.runs.start import plan_in
from slurm_rl.plugins.judge.mixture import open_judged_reward
from slurm_rl.plugins.judge.scorer import open_judge
from slurm_rl.plugins.report.summary import summarize_run
from slurm_rl.rewards.results import Failure, RewardItem, RewardResult
from slurm_rl.run_dir.event_text import read_events
from slurm_rl.run_dir.jsonl import read_rows
from slurm_rl.run_dir.judge_total import describe_judge, read_judge_total
from slurm_rl.run_dir.run_dir import RunDir
from tests.unit.plugins.judge.api_kit import Answer, Api, serve_api

CANARY = "sk-canary-0123456789"


def judge_config(api: Api, **keys: Any) -> JudgeConfig:
    settings = {"prompt": "{completion}", "deadline_s": 30.0, "timeout_s": 10.0, **keys}
    return JudgeConfig(model="judge-1", url=api.url, **settings)


def items(*texts: str) -> list[RewardItem]:
    return [RewardItem(completion=text, answer="7", prompt="3+4=") for text in texts]


def score(run: RunDir, config: JudgeConfig, *texts: str) -> list[RewardResult]:
    with open_judge(config, run) as judge:
        return judge.score(items(*texts))


def after(num: int, fault: Answer) -> Callable[[str], Answer]:
    """Answer with the fault `num` times, then with the prompt."""
    faults: Iterator[Answer] = iter([fault] * num)
    return lambda prompt: next(faults, None) or Answer(prompt)


def test_verdicts_are_in_order_with_cost_and_key(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", CANARY)
    with serve_api(lambda prompt: Answer(f"Sum: {prompt[0]}")) as api:
        config = judge_config(
            api, api_key="MY_JUDGE_KEY", prompt="{completion}|{question}|{reference}", range=(0, 10), price_input=2.0
        )
        results = score(run, config, "5", "{reference}", *"0123")
    assert [result.value for result in results] == [0.5, None, 0.0, 0.1, 0.2, 0.3]
    assert results[1].failure == "bad score", "braces of a completion are not filled in"
    assert results[0].parts == {"judge": 0.5, "judge_cost": pytest.approx(100 * 2.0 / 1e6)}
    assert set(api.keys) == {f"Bearer {CANARY}"}
    assert {"messages": [{"role": "user", "content": "5|3+4=|7"}], "model": "judge-1"}.items() <= api.requests[
        [request["messages"][0]["content"][0] for request in api.requests].index("5")
    ].items()
    assert api.requests[0]["temperature"] == 0.0
    assert [path for path in run.path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()] == []
    (closed,) = read_events(run)
    assert (closed["kind"], closed["replies"]) == ("judge/closed", 7)
    assert closed["cost"] == pytest.approx(7 * 100 * 2.0 / 1e6)


@pytest.mark.parametrize(
    "fault",
    [
        Answer(status=429, headers={"Retry-After": "1"}),
        Answer(status=500),
        Answer(status=503, body=b"<html>busy"),
        Answer("1", hang_s=5.0),
    ],
    ids=["429", "500", "html", "hang"],
)
def test_temporary_fault_is_retried(run: RunDir, fault: Answer) -> None:
    began = time.monotonic()
    with serve_api(after(1, fault)) as api:
        (result,) = score(run, judge_config(api, timeout_s=1.0 if fault.hang_s else 10.0), "1")
    assert result.value == 1.0
    # On a loaded machine the second answer may be late, too.
    assert len(api.requests) >= 2 if fault.hang_s else len(api.requests) == 2
    if fault.status == 429:
        assert time.monotonic() - began >= 1.0, "Retry-After is honoured"


@pytest.mark.parametrize(
    ("answer", "failure", "detail"),
    [
        (Answer(status=500), "hang", "deadline_s = 6; the API's last error was 500"),
        (Answer("1", hang_s=600.0), "hang", "deadline_s = 6"),
        (Answer(status=400), "service", "BadRequestError"),
        (Answer(body=b'{"choices": []}'), "service", "choices[0].message.content"),
        (Answer(body=b'"1"'), "service", "choices[0].message.content"),
        (Answer(body=b"{"), "service", ""),
        (Answer("1", finish_reason="length"), "bad score", "cut at max_tokens"),
        (Answer(None, finish_reason="content_filter"), "bad score", "content_filter"),
        (Answer("2 of 3"), "bad score", "one number"),
    ],
    ids=["500", "hang", "400", "no choice", "text", "no json", "cut", "refusal", "two numbers"],
)
def test_lasting_fault_fails_only_its_item(run: RunDir, answer: Answer, failure: str, detail: str) -> None:
    with serve_api(lambda prompt: answer if prompt == "bad" else Answer(prompt)) as api:
        config = judge_config(api, deadline_s=6.0 if failure == "hang" else 60.0)
        good, bad, last = score(run, config, "1", "bad", "0")
    assert (good.value, bad.value, last.value) == (1.0, None, 0.0)
    assert bad.failure == failure and detail in bad.detail


def test_refused_key_ends_run_without_printing_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", CANARY)
    refusal = Answer(status=401, body=f'{{"error": {{"message": "wrong key {CANARY}"}}}}'.encode())
    with serve_api(lambda _: refusal) as api, pytest.raises(RewardError, match="must accept the key") as caught:
        score(run, judge_config(api, api_key="MY_JUDGE_KEY"), "1")
    assert "<key>" in str(caught.value) and CANARY not in str(caught.value)


def test_unreachable_api_ends_run_before_first_score(run: RunDir) -> None:
    config = JudgeConfig(model="m", url="http://127.0.0.1:9/v1", prompt="{completion}", deadline_s=1.5)
    with (
        pytest.raises(RewardError, match=r"must answer before the run starts; got http://127\.0\.0\.1:9"),
        open_judge(config, run),
    ):
        pass


def test_requests_at_once_are_bounded(run: RunDir) -> None:
    busy: list[str] = []
    counts: list[int] = []

    def answer(prompt: str) -> Answer:
        busy.append(prompt)
        counts.append(len(busy))
        time.sleep(0.2)
        busy.remove(prompt)
        return Answer(prompt)

    with serve_api(answer) as api:
        results = score(run, judge_config(api, num_connections=2, range=(0, 10)), *"01234567")
    assert [result.value for result in results] == [number / 10 for number in range(8)] and max(counts) <= 2


def test_votes_are_averaged_with_agreement(run: RunDir) -> None:
    verdicts = iter(["GOOD", "hm", "BAD", "GOOD", "GOOD"])
    with serve_api(lambda _: Answer(next(verdicts))) as api:
        choices = {"GOOD": 1.0, "BAD": 0.0}
        config = judge_config(api, parser="choice", choices=choices, votes=4, request={"temperature": 1.0})
        (result,) = score(run, config, "1")
    # The reply without a verdict was requested again.
    assert (result.value, result.parts["judge_agreement"], len(api.requests)) == (0.75, 0.75, 5)


def test_cache_repeats_verdicts_in_resumed_run(run: RunDir) -> None:
    replies = iter("01x1" + "0" * 9)
    with serve_api(lambda _: Answer(next(replies))) as api:
        config = judge_config(api, tries=1)
        first = [result.value for text in "abc" for result in score(run, config, text)]
        with run.judge.open("ab") as file:
            file.write(b'{"key": "cut sho')
        # Equal completions of one batch have one reply.
        results = score(run, config, *"abcdd")
        assert [result.value for result in results] == [*first, 1.0, 1.0]
        assert first == [0.0, 1.0, None]
        assert len(api.requests) == 4
        score(run, config.model_copy(update={"model": "judge-2"}), "a")
    assert len(api.requests) == len(read_rows(run.judge)) == 5


class Lengths:
    """A stand-in for verifiers: the length is the reward, and an empty completion fails."""

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        return [
            RewardResult(item=one, value=0.5 * len(one.completion), parts={"length": len(one.completion)})
            if one.completion
            else Failure("crash", "empty").result(one)
            for one in items
        ]


def test_mixture_is_weighted_sum_and_fails_with_either_part(run: RunDir) -> None:
    opened: list[Lengths] = []

    @contextmanager
    def open_verifiers() -> Iterator[Lengths]:
        opened.append(Lengths())
        yield opened[-1]

    with serve_api(lambda prompt: Answer('{"score": 1, "length": 9, "tone": 2}' if prompt == "good" else "hm")) as api:
        judge = judge_config(api, parser="json", weight=0.25)
        config = RewardConfig(verifiers={"arithmetic": 1.0}, judge=judge)
        with open_judged_reward(config, run, open_verifiers) as mixture:
            good, bad, empty = mixture.score(items("good", "bad", ""))
        with open_judged_reward(RewardConfig(judge=judge_config(api)), run, open_verifiers):
            assert len(opened) == 1, "a judge without a weight is the whole reward"
    assert good.value == 0.5 * 4 + 0.25 * 1
    assert good.parts == {"length": 4, "judge": 1.0, "tone": 2.0, "judge_cost": 0.0}
    assert (bad.value, bad.failure) == (None, "bad score") and (empty.value, empty.failure) == (None, "crash")
    assert {request["messages"][0]["content"] for request in api.requests} == {"good", "bad"}


def test_total_price_counts_attempts_and_judges(run: RunDir) -> None:
    assert read_judge_total(run) is None
    with serve_api(lambda prompt: Answer("1")) as api:
        config = judge_config(api, price_output=1e5)
        with open_judge(config, run) as first, open_judge(config.model_copy(update={"model": "j2"}), run) as second:
            first.score(items("a", "b"))
            second.score(items("a"))
        with run.judge.open("ab") as file:
            file.write(b'{"key": "cut sho')
        score(run, config, "a", "c")
    assert read_judge_total(run) == {"replies": 4, "cost": 4.0}
    assert describe_judge({"replies": 4, "cost": 4.0}) == "4 replies, price 4.00"
    assert summarize_run(run)["judge"] == {"replies": 4, "cost": 4.0}


JUDGED = ["+exp=demo", "warmup.num_steps=0", "reward.judge.model=j"]
JUDGED += ["reward.judge.url=http://127.0.0.1:9/v1"]


def test_prompt_file_is_kept_as_text(tmp_path: Path) -> None:
    prompt = tmp_path / "judge.txt"
    prompt.write_text('Rate it, as {"score": 1}: {completion}\n')
    config = load_config([*JUDGED, f"reward.judge.prompt={prompt}"])
    assert config.reward.judge.prompt == prompt.read_text()
    plan = plan_in(config, RunDir(tmp_path / "run"))
    assert "reward.judge" not in str(plan.secret_names)


def test_misspelt_prompt_file_gets_suggestion(tmp_path: Path) -> None:
    (tmp_path / "judge.txt").write_text("{completion}")
    with pytest.raises(ConfigError, match=rf"did you mean {tmp_path}/judge\.txt\?"):
        load_config([*JUDGED, f"reward.judge.prompt={tmp_path}/jugde.txt"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.judge.prompt=/none.txt"], r"readable file.*got '/none.txt' \(No such file"),
        ([], "must be a file with the judge's prompt; got none"),
        (["reward.judge.prompt='{answer} {completion}'"], r"may contain .*; got \{answer\}"),
        (["reward.judge.prompt='{completion}'", "reward.judge.url=null"], "needs the API's address"),
        (["reward.judge.prompt='{completion}'", "reward.judge.url=ftp://a"], "must be http"),
        (["reward.judge.prompt='{completion}'", "reward.judge.parser=choice"], "parser=choice, which needs it"),
        (["reward.judge.prompt='{completion}'", "reward.judge.votes=3"], "votes with temperature 0 are equal"),
        (["reward.judge.prompt='{completion}'", "reward.judge.range=[1,1]"], r"\[lowest, highest\]"),
        (["reward.judge.prompt='{completion}'", "+reward.judge.request.n=2"], "must not contain n"),
        (["reward.judge.prompt='{completion}'", "reward.url=http://a/b"], "only one of"),
        (
            ["reward.judge.prompt='{completion}'", "reward.judge.weight=1", "reward.verifiers={arithmetic: null}"],
            "for the sum of a judge and reward.verifiers; got no verifiers and j",
        ),
        (["reward.judge.model=null", "reward.judge.weight=1"], "got arithmetic and no judge"),
        (["reward.judge.prompt='{completion}'", "reward.judge.url=judge:80/v1"], "Next: http://judge:80/v1"),
        (
            ["reward.judge.prompt='{completion}'", "reward.service.enabled=true"],
            "reward.judge does not score in services",
        ),
    ],
)
def test_bad_judge_is_refused_before_run(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config([*JUDGED, *words])


def test_key_in_config_is_refused_without_printing_it() -> None:
    with pytest.raises(ConfigError, match="must be the name of an environment variable") as caught:
        load_config([*JUDGED, "reward.judge.prompt='{completion}'", f"reward.judge.api_key={CANARY}"])
    assert CANARY not in str(caught.value)


def test_missing_key_is_refused_at_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MY_JUDGE_KEY", raising=False)
    words = [*JUDGED, "reward.judge.prompt='{completion}'", "reward.judge.api_key=MY_JUDGE_KEY"]
    config = load_config(words)
    run = RunDir(tmp_path / "run")
    plan = plan_in(config, run)
    assert plan.secret_names == ("WANDB_API_KEY", "HF_TOKEN", "MY_JUDGE_KEY")
    with pytest.raises(ConfigError, match="MY_JUDGE_KEY is not set"):
        create_run(run, config, plan)
    assert not run.path.exists()
    assert main(["plan", *words]) == 0
    assert "submit will refuse this: reward.judge.api_key" in capsys.readouterr().err
    with pytest.raises(RewardError, match="MY_JUDGE_KEY is not set"), open_judge(config.reward.judge, run):
        pass
