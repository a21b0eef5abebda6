"""Servers of a judge: supervision with a stand-in for vLLM (server_kit.py), arguments, key, plan."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from slurm_rl.config.load import load_config
from slurm_rl.config.reward import RewardConfig
from slurm_rl.config.run import RunConfig
from slurm_rl.errors import ConfigError, RewardError
from slurm_rl.launch.runs.checks import check_inputs
from slurm_rl.plan.build_plan import SubmitFacts, build_plan
from slurm_rl.plan.explain import render_explanation
from slurm_rl.plan.job import JobPlan
from slurm_rl.plan.memory import ModelShape
from slurm_rl.plugins.judge import scorer
from slurm_rl.plugins.judge.scorer import open_judge
from slurm_rl.plugins.judge.server import KEY, RequireKey, build_words
from slurm_rl.rewards.results import RewardItem
from slurm_rl.run_dir.run_dir import RunDir
from tests.unit.plugins.judge.server_kit import open_servers


def judged(num: int = 1, **judge: Any) -> RewardConfig:
    server = {"model": "/models/judge", **judge.pop("server", {})}
    settings = {"prompt": "{completion}", "server": server, "deadline_s": 60.0, **judge}
    config = RewardConfig.model_validate({"judge": settings})
    return config.model_copy(update={"service": config.service.model_copy(update={"num_replicas": num})})


def items(*texts: str) -> list[RewardItem]:
    return [RewardItem(completion=text, answer="") for text in texts]


def test_servers_share_requests_and_retry_those_of_dead_one(run: RunDir, tmp_path: Path) -> None:
    events: list[str] = []
    config = judged(2)
    with open_servers(tmp_path, config, lambda kind, **fields: events.append(kind)) as servers:
        assert [url.endswith("/v1") for url in servers.urls] == [True, True]
        family = [psutil.Process(pid) for pid in servers.pids]
        assert not any(servers.token in word for one in family for word in one.cmdline())
        assert httpx.get(servers.urls[0]).status_code == 401
        with open_judge(config.judge, run, servers.urls, servers.token, servers.check) as judge:
            texts = [str(number) for number in range(80)]
            assert [result.value for result in judge.score(items(*texts[:40]))] == [1.0] * 40
            assert len([*(tmp_path / "logs").glob("served-*")]) == 2
            assert [result.value for result in judge.score(items("die", *texts[40:]))] == [1.0] * 41
    served = [path.read_text().split() for path in (tmp_path / "logs").glob("served-*")]
    counts = Counter(text for part in served for text in part)
    # Requests in flight at the death may have been served twice.
    assert counts.keys() == {"die", *texts} and {counts[text] for text in texts[:40]} == {1}
    assert events.count("reward/service_died") == 1
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


def test_abandoned_server_ends_run_with_its_log(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_CHECK_S", 0.1)
    config = judged(server={"start_timeout_s": 100.0})
    with (
        open_servers(tmp_path, config, lambda kind, **fields: None) as servers,
        open_judge(config.judge, run, servers.urls, servers.token, servers.check) as judge,
        pytest.raises(RewardError, match=r"(?s)judge service must live.*exit status 3.*stand-in is up"),
    ):
        judge.score(items("always die"))


def test_every_path_needs_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-1")
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(path: str, key: bytes) -> int:
        headers = {b"Authorization": key} if key else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(RequireKey(app)), base_url="http://a") as client:
            return (await client.get(path, headers=headers)).status_code

    paths = ["/v1/models", "/invocations", "/metrics", "/health"]
    refused = [asyncio.run(ask(path, key)) for path in paths for key in (b"", b"sk-1", b"Bearer sk-2", b"Bearer \xff")]
    assert set(refused) == {401} and seen == []
    assert asyncio.run(ask("/v1/models", b"Bearer sk-1")) == 200


def test_build_words_follow_config_and_gpus() -> None:
    server = judged(server={"max_model_len": 4096, "vllm_args": {"hf_overrides": {"a": 1}}}).judge.server
    assert build_words(server, 2) == [
        "--model=/models/judge", "--max-model-len=4096", "--gpu-memory-utilization=0.9", "--tensor-parallel-size=2",
        "--distributed-executor-backend=mp", '--hf-overrides={"a": 1}',
    ]  # fmt: skip
    assert "--enforce-eager" in build_words(server, 0) and "--tensor-parallel-size=1" not in build_words(server, 0)


JUDGED = ["reward.judge.server.model=/models/judge", "reward.judge.prompt='{completion}'"]
H100 = ["+exp=demo", "+cluster=nvidia_h100", "cluster.num_nodes=2", "model=hf", "model.path=/m"]
# Llama's 8 billion.
SHAPE = ModelShape(32, 4096, 14336, 128256, 32, 8, 128, False, context_length=131072)


def config_of(*words: str) -> RunConfig:
    return load_config([*H100, *JUDGED, *words])


def plan_of(*words: str, shape: ModelShape | None = SHAPE) -> JobPlan:
    facts = SubmitFacts("/usr/bin/python3", 8, "test", model_shape=SHAPE, reward_shape=shape)
    return build_plan(config_of(*words), "/runs/a", facts)


def test_servers_have_gpus_of_their_own() -> None:
    words = ["reward.judge.server.num_replicas=2", "reward.judge.server.tensor_parallel_size=2"]
    plan = plan_of(*words)
    assert [(one.node, one.gpus) for one in plan.actors if one.role == "reward"] == [(1, (4, 5)), (1, (6, 7))]
    others = {(one.node, gpu) for one in plan.actors if one.role != "reward" for gpu in one.gpus}
    assert len(others) == 12 and others.isdisjoint({(1, 4), (1, 5), (1, 6), (1, 7)})
    assert JobPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    text = " ".join(render_explanation(config_of(*words), plan, SHAPE).split())
    assert "the judge /models/judge in 2 vLLM servers of the run, 2 GPUs each, 1 vote" in text
    assert "judge GPU, of 72: weights 8.0, then room for" in text


def test_servers_run_on_their_group_and_on_cpus() -> None:
    groups = ["+cluster.nodes.h100.count=1", "+cluster.nodes.a100={count: 1, gpus_per_node: 4, gpu_mem_gb: 40}"]
    plan = plan_of(*groups, "reward.judge.server.node_group=a100", "policy.node_group=h100", "rollout.node_group=h100",
                   "reward.judge.server.tensor_parallel_size=4")  # fmt: skip
    assert [(one.node, one.gpus) for one in plan.actors if one.role == "reward"] == [(1, (0, 1, 2, 3))]
    config = load_config(["+exp=demo", "warmup.num_steps=0", *JUDGED, "cluster.accelerator=cpu"])
    plan = build_plan(config, "/runs/a", SubmitFacts("/usr/bin/python3", 8, "test"))
    assert [(one.node, one.gpus) for one in plan.actors if one.role == "reward"] == [(0, ())]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.judge.url=http://a/v1"], "got reward.judge.url too"),
        (["reward.judge.server.model=null", "reward.judge.server.num_replicas=2"], "needs the model that it serves"),
        (["reward.judge.server.max_model_len=512"], r"above reward.judge.request.max_tokens.*512 and 512"),
        (["+reward.judge.server.vllm_args.port=80"], "must not have arguments that the run sets; got port"),
        (["reward.judge.server.node_group=a"], "must be one of cluster.nodes"),
        (["reward.service.enabled=true"], "does not score in services of the run"),
        (["reward.function=f.py:score"], "only one of these can compute the reward"),
        (["+eval.sets.s={data: addition, reward: {judge: {server: {model: /j}, prompt: '{completion}'}}}"],
         "eval.sets.s: reward.judge.server is for the reward of the whole run"),
        (["reward.judge.server.tensor_parallel_size=16"], "<= the GPUs of a node.*16 > 8"),
        (["reward.judge.server.num_replicas=17"], r"num_replicas must be <= .*17 > 2 \* 8"),
        (["reward.judge.server.num_replicas=16"], r"policy.num_workers must be.*of which other roles have 16"),
        (["reward.judge.server.tensor_parallel_size=3"], "must divide the attention heads.*32 heads over 3"),
    ],
)  # fmt: skip
def test_impossible_server_is_refused_in_plan(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(*words)


def test_model_that_exceeds_gpu_is_refused_with_numbers() -> None:
    big = ModelShape(80, 8192, 28672, 128256, 64, 8, 128, False, context_length=131072)
    with pytest.raises(ConfigError, match=r"GB > 72\.0 GB: weights 141\.\d, KV cache of 131072 tokens") as caught:
        plan_of(shape=big)
    assert "raise reward.judge.server.tensor_parallel_size, lower its max_model_len" in str(caught.value)
    assert plan_of("reward.judge.server.tensor_parallel_size=4", shape=big).layout.judge is not None
    assert plan_of(shape=None).layout.judge is None


def test_offline_nodes_need_local_judge(tmp_path: Path) -> None:
    words = ["+exp=demo", "cluster.internet=false", *JUDGED[1:], "reward.judge.server.model=org/judge"]
    with pytest.raises(ConfigError, match=r"reward\.judge\.server\.model=org/judge \(python -m slurm_rl prepare model"):
        check_inputs(load_config(words), print)


def test_relative_model_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge").mkdir()
    config = load_config(["+exp=demo", JUDGED[1], "reward.judge.server.model=judge"])
    assert config.reward.judge.server.model == str(tmp_path / "judge")
    assert re.fullmatch(r"\d+", str(config.reward.num_placed))
