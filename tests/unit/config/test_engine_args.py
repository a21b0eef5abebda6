import pytest

from slurm_rl.config.engine_args import OURS, check_engine_args, read_engine_args
from slurm_rl.errors import ConfigError


def test_check_engine_args_suggests_nearest_field() -> None:
    check_engine_args({"max_num_batched_tokens": 8192, "quantization": "fp8"})
    with pytest.raises(ConfigError, match=r"EngineArgs; got max_num_batched_token\. .*max_num_batched_tokens\?"):
        check_engine_args(["max_num_batched_token"])
    assert set(OURS) <= set(read_engine_args()), "vLLM renamed an argument that we set"


def test_check_engine_args_accepts_anything_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    read_engine_args.cache_clear()
    try:
        check_engine_args(["nonesuch"])
    finally:
        read_engine_args.cache_clear()
