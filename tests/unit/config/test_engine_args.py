import pytest

from slurm_rl.config.engine_args import ENGINE, OURS, SERVER, check_engine_args, read_fields
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.checks import check_inputs


def test_check_engine_args_suggests_nearest_field() -> None:
    check_engine_args({"max_num_batched_tokens": 8192, "quantization": "fp8"})
    with pytest.raises(ConfigError, match=r"EngineArgs; got max_num_batched_token\. .*max_num_batched_tokens\?"):
        check_engine_args(["max_num_batched_token"])
    assert set(OURS) <= set(read_fields(*next(iter(ENGINE.items())))), "vLLM renamed an argument that we set"


def test_check_engine_args_knows_arguments_of_server() -> None:
    check_engine_args({"reasoning_parser": "qwen3", "chat_template": "a.jinja", "max_num_seqs": 8}, "key", SERVER)
    with pytest.raises(ConfigError, match=r"key must name .*FrontendArgs; got chat_templat\. .*chat_template\?"):
        check_engine_args(["chat_templat"], "key", SERVER)
    words = ["+exp=demo", "reward.judge.server.model=j", "reward.judge.prompt='{completion}'"]
    config = load_config([*words, "+reward.judge.server.vllm_args.max_num_seq=8"])
    with pytest.raises(ConfigError, match=r"reward\.judge\.server\.vllm_args must name .*did you mean max_num_seqs"):
        check_inputs(config, print)


def test_check_engine_args_accepts_anything_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    read_fields.cache_clear()
    try:
        check_engine_args(["nonesuch"])
    finally:
        read_fields.cache_clear()
