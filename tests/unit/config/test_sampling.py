"""What a user may say of sampling, and which correction follows from it."""

from __future__ import annotations

import pytest

from slurm_rl.config.engine_args import OURS, check_engine_args, read_engine_args
from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError

BENDING = ["rollout.top_p=0.9", "rollout.top_k=20", "rollout.min_p=0.05", "rollout.repetition_penalty=1.1"]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], None),
        (["rollout.stop=[x]", "rollout.stop_token_ids=[3]", "rollout.temperature=0.7"], None),
        (["model.dtype=bfloat16"], "token_tis"),
        (["model.dtype=bfloat16", "+algorithm=gspo"], "geometric_mask"),
        (["model.dtype=bfloat16", "algorithm.loss=gspo_token"], "geometric_mask"),
        (["rollout.max_staleness=1"], "token_tis"),
        (["+rollout.engine_args.kv_cache_dtype=fp8"], "token_tis"),
        *(([word], "token_tis") for word in BENDING),
        (["model.dtype=bfloat16", "algorithm.correction.kind=null"], None),
        (["algorithm.correction.kind=icepop"], "icepop"),
    ],
)
def test_who_samples_as_the_policy_needs_no_correction_and_others_get_one(words: list[str], kind: str | None) -> None:
    assert load_config(["+exp=demo", *words]).correction_kind == kind


@pytest.mark.parametrize("word", BENDING)
def test_a_bent_distribution_has_no_kl_to_the_reference(word: str) -> None:
    with pytest.raises(ConfigError, match=r"a KL term needs.*repetition_penalty.*kl\.coefficient=0\.1.*Next"):
        load_config(["+exp=demo", word, "algorithm.kl.coefficient=0.1"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["rollout.top_k=-1"], ["rollout.top_k", "-1"]),
        (["rollout.min_p=1"], ["rollout.min_p", "1"]),
        (["rollout.repetition_penalty=0"], ["rollout.repetition_penalty", "0"]),
        (["rollout.stop=['']"], ["rollout.stop"]),
        (["rollout.stop=x"], ["rollout.stop", "x"]),
        (["+rollout.engine_args.dtype=half"], ["rollout.engine_args", "dtype", "model.dtype"]),
        (["+rollout.engine_args.logprobs_mode=raw_logprobs"], ["rollout.engine_args", "logprobs_mode", "leave it out"]),
    ],
)
def test_wrong_sampling_is_named_with_its_remedy(words: list[str], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["+exp=demo", *words])
    assert all(name in str(caught.value) for name in names), str(caught.value)


def test_arguments_of_the_engine_are_held_against_vllms_own() -> None:
    check_engine_args({"max_num_batched_tokens": 8192, "quantization": "fp8"})
    with pytest.raises(ConfigError, match=r"EngineArgs; got max_num_batched_token\. .*max_num_batched_tokens\?"):
        check_engine_args(["max_num_batched_token"])
    assert set(OURS) <= set(read_engine_args()), "an argument that we keep for ourselves has another name now"


def test_without_vllm_they_are_left_to_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    read_engine_args.cache_clear()
    try:
        check_engine_args(["nonesuch"])
    finally:
        read_engine_args.cache_clear()
