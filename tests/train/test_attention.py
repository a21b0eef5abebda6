"""Attention over packed rows without a mask equals masked attention; `auto` selects it where supported."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, logging, modeling_flash_attention_utils
from transformers.integrations import flash_attention

from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import TrainSequence
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.train import OptimConfig, PolicyConfig
from slurm_rl.errors import ConfigError
from slurm_rl.models import attention
from slurm_rl.models.attention import FLASH, VARLEN, choose_attention, settle_attention
from slurm_rl.models.forward import RowReader
from slurm_rl.models.load_model import load_model
from slurm_rl.models.policy import PolicyEngine
from slurm_rl.models.row_check import check_rows
from slurm_rl.models.vision import load_image_reader
from tests.image_kit import build_sequence, write_image
from tests.live_bytes import LiveBytes
from tests.tiny_models import TinyVL, build_tiny_model
from tests.train.model_families import CPU, FAMILIES, PAGE, build_model, build_sequences

_UTILS = modeling_flash_attention_utils
_SIGNATURE = inspect.signature(varlen.varlen_attn)


def attend_exactly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    window: int | None,
    softcap: float = 0.0,
    causal: bool = True,
) -> Tensor:
    """Compute attention within [n, H, D] by its definition, in float32; `window` includes the token itself."""
    groups, length = query.shape[1] // key.shape[1], len(query)
    key, value = (tensor.repeat_interleave(groups, dim=1).float() for tensor in (key, value))
    scores = torch.einsum("ihd,jhd->hij", query.float(), key) * (scale or query.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    back = torch.arange(length)[:, None] - torch.arange(length)
    seen = (back >= 0) & (back < (window or length))
    weights = (scores.masked_fill(~seen, -torch.inf) if causal else scores).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, value).to(query.dtype)


def _attend_each(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, *rest: Any) -> Tensor:
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert ends.dtype == torch.int32 and ends[0] == 0 and ends[-1] == len(query) == len(key)
    lengths = ends.diff().tolist()
    assert max(lengths) == longest
    parts = zip(*(tensor.split(lengths) for tensor in (query, key, value)), strict=True)
    return torch.cat([attend_exactly(*part, *rest) for part in parts])


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """https://github.com/Dao-AILab/flash-attention, flash_attn/flash_attn_interface.py."""
    assert dropout_p == 0.0 and torch.equal(cu_seqlens_q, cu_seqlens_k) and max_seqlen_q == max_seqlen_k
    window = None if window_size[0] < 0 else window_size[0] + 1
    return _attend_each(q, k, v, cu_seqlens_q, int(max_seqlen_q), softmax_scale, window, softcap, causal)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """The same for rows [R, W, H, D] of one sequence each."""
    window = None if window_size[0] < 0 else window_size[0] + 1
    rows = zip(q, k, v, strict=True)
    return torch.stack([attend_exactly(*row, softmax_scale, window, softcap, causal) for row in rows])


def varlen_attn(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **more: Any) -> Tensor:
    """Stand-in for torch.nn.attention.varlen.varlen_attn with the original signature."""
    given = _SIGNATURE.bind(query, key, value, *arguments, **more)
    given.apply_defaults()
    fields = given.arguments
    assert fields["window_size"][1] == 0  # causal
    assert fields["cu_seq_q"] is fields["cu_seq_k"] and fields["max_q"] == fields["max_k"]
    assert fields["enable_gqa"] or query.shape[1] == key.shape[1]
    window = None if fields["window_size"][0] < 0 else fields["window_size"][0] + 1
    return _attend_each(query, key, value, fields["cu_seq_q"], fields["max_q"], fields["scale"], window)


@contextmanager
def flash_attn_installed() -> Iterator[None]:
    """Make transformers import these functions as flash-attn's and accept float32."""
    functions = (flash_attn_func, flash_attn_varlen_func, None, _UTILS._pad_input, _UTILS._unpad_input)
    with (
        mock.patch.object(_UTILS, "_loaded_implementation", None),
        mock.patch.object(_UTILS, "_lazy_imports", lambda *_, **__: functions),
        mock.patch.object(flash_attention, "get_target_dtype", lambda *_: None),
    ):
        yield


logging.set_verbosity_error()
# Grouped heads, windows in some layers, values narrower than queries with experts, absolute positions.
LINES = {
    line.split(" | ")[0].strip("| "): line.split(" | ")[1:]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line[:1] == "|"
}
QUICK = ["qwen3", "gemma3_text", "deepseek_v3", "gpt2"]
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES if family not in QUICK]


def read(model: PreTrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logprobs and all gradients of sequences in packed rows."""
    model.zero_grad()
    logprobs, _ = RowReader(model, CPU).forward(build_packed_batch(build_sequences()), 0.7)
    (logprobs * torch.linspace(0.5, 1.5, len(logprobs))).sum().backward()  # type: ignore[no-untyped-call]
    return logprobs.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(found: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    # A random minicpm3 has logprobs down to -112, where the spacing of float32 is 8e-6.
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()) + 1e-6)


def assert_packed_equals_masked(model: PreTrainedModel, masked: tuple[Tensor, dict[str, Tensor]], family: str) -> None:
    """Check for equal numbers if the row check packs the family; it must pack the quick families."""
    if family in QUICK or check_rows(RowReader(model, CPU), torch.float32).packed:
        assert_same(read(model), masked)


@pytest.mark.parametrize("family", [*QUICK, *SLOW])
def test_varlen_equals_masked_rows(family: str) -> None:
    """For every family with varlen attention and correct masked rows."""
    model = build_model(family)
    if choose_attention(model, "cuda", any_mask=True) != "varlen" or LINES[family][0] != "packed":
        assert family not in QUICK
        return
    masked = read(model)
    settle_attention(model, "varlen", any_mask=False)
    assert model.config._attn_implementation == "varlen"
    assert_packed_equals_masked(model, masked, family)


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma3_text", "deepseek_v3"])
def test_kernel_gets_same_arguments(family: str) -> None:
    """torch's kernel is replaced by a reference that checks the names of its arguments."""
    model = build_model(family)
    masked, kernel = read(model), mock.Mock(side_effect=varlen_attn)
    settle_attention(model, "varlen", any_mask=False)
    with (
        mock.patch("torch.nn.attention.varlen.varlen_attn", kernel),
        mock.patch.object(attention, "_fits_kernel", lambda *_: True),
    ):
        assert_same(read(model), masked)
    assert kernel.call_count == 2  # layers


@pytest.mark.parametrize("family", [*QUICK, *SLOW])
def test_flash_attention_gets_sequence_ends(family: str) -> None:
    """The same for flash-attn through transformers, for every family that supports it."""
    model = build_model(family, torch.bfloat16)
    with mock.patch.object(attention, "is_flash_attn_2_available", lambda: True):
        if choose_attention(model, "cuda", any_mask=False) != FLASH or LINES[family][0] != "packed":
            assert family not in QUICK
            return
    model = build_model(family)
    if choose_attention(model, "cpu", any_mask=False) == "eager":
        model.set_attn_implementation("eager")
    masked = read(model)
    model.config._attn_implementation = FLASH  # skip the checks for a GPU and the package
    with flash_attn_installed():
        assert_packed_equals_masked(model, masked, family)


def test_scores_are_capped_on_every_device() -> None:
    """SDPA silently ignores a score cap; varlen has no such argument."""
    model: Any = build_model("gemma2")
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = 0.05
    assert [choose_attention(model, device, any_mask=False) for device in ("cpu", "cuda")] == ["eager"] * 2
    masked = read(model)[0]
    settle_attention(model, "auto", any_mask=False)
    assert not torch.allclose(masked, read(model)[0], atol=1e-3)
    with pytest.raises(ConfigError, match=r"model\.attention=varlen.*Gemma2ForCausalLM.*attention=auto"):
        settle_attention(model, "varlen", any_mask=False)


@pytest.mark.parametrize(
    ("family", "dtype", "chosen"),
    [
        ("qwen3", torch.bfloat16, FLASH),
        ("qwen3", torch.float32, VARLEN),  # flash-attn requires half precision
        ("phimoe", torch.bfloat16, None),  # its window exists only in its mask
        ("gemma2", torch.bfloat16, FLASH),
        ("llama4_text", torch.bfloat16, None),  # chunks are not windows
        ("gpt_oss", torch.bfloat16, None),  # sinks
        ("bloom", torch.bfloat16, None),
    ],
)
def test_auto_uses_flash_attention_if_model_supports_it(family: str, dtype: torch.dtype, chosen: str | None) -> None:
    model = build_model(family, dtype)
    with mock.patch.object(attention, "is_flash_attn_2_available", lambda: True):
        assert choose_attention(model, "cuda", any_mask=False) == chosen
        assert choose_attention(model, "cuda", any_mask=True) != FLASH
        assert choose_attention(model, "cpu", any_mask=False) != FLASH
        model.config.head_dim = 512
        assert choose_attention(model, "cuda", any_mask=False) != FLASH


def build_engine(folder: Path, policy: PolicyConfig, score_seed: int | None, **model: Any) -> PolicyEngine:
    config, optim = ModelConfig(path=str(folder), **model), OptimConfig(lr=1e-2)
    return PolicyEngine(folder, config, policy, optim, temperature=1.0, score_seed=score_seed)


def build_small() -> list[TrainSequence]:
    random = np.random.default_rng(0)
    return [TrainSequence(token_ids=random.integers(2, 14, n), trained_from=2) for n in (20, 3, 9, 4)]


@pytest.mark.parametrize(
    ("fields", "score_seed"), [({}, None), ({"logprob_chunk_tokens": 5}, 1), ({"prefix_sharing": True}, None)]
)
def test_engine_takes_same_steps(folder: Path, fields: dict[str, Any], score_seed: int | None) -> None:
    """For policy and critic, with the choices of `auto` on GPU and CPU; shared prompts need a mask."""
    policy, found = PolicyConfig(num_threads=1, **fields), []
    for device in ("cpu", "cuda"):
        with mock.patch.object(attention, "get_device", lambda device=device: torch.device(device)):
            engine = build_engine(folder, policy, score_seed, gradient_checkpointing=True)
        assert engine.module.config._attn_implementation == {"cpu": "sdpa", "cuda": VARLEN}[device]
        assert engine.rows.packed and engine.rows.attention == engine.module.config._attn_implementation
        engine.train([build_small()], lambda _, values, __: (values.square().mean(), {}), 1e-2)
        compute = engine.compute_logprobs if score_seed is None else engine.compute_scores
        found.append(np.concatenate(compute([build_small()])[0]))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


@pytest.mark.parametrize(("family", "implementation"), [("qwen2_5_vl", VARLEN), ("qwen3_vl", FLASH)])
def test_images_give_same_result(family: Any, implementation: str, tmp_path: Path) -> None:
    """The vision tower attends to each image as a whole, the text to earlier tokens."""
    build_tiny_model(TinyVL(family=family), 0, tmp_path / "model")
    config = ModelConfig(path=str(tmp_path / "model"))
    model, images = load_model(tmp_path / "model", config), load_image_reader(tmp_path / "model", config)
    assert images is not None
    picture, other = (write_image(tmp_path / f"{seed}.png", seed, 60, 80 + 50 * seed) for seed in (0, 1))
    sequences = [
        build_sequence(images, 1, [picture, other], 3, 5),
        build_sequence(images, 2, [], 4, 9),
        build_sequence(images, 3, [other], 9, 3),
    ]
    reader = RowReader(model, CPU, images=images)
    masked = reader.compute_logprobs(sequences, 1.0)
    if implementation == VARLEN:
        settle_attention(model, VARLEN, any_mask=False)
    else:
        model.config._attn_implementation = FLASH
    with flash_attn_installed():
        found = reader.compute_logprobs(sequences, 1.0)
    for one, expected in zip(found, masked, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, pytest.param(256, marks=pytest.mark.slow)])
def test_packed_row_allocates_less_than_mask(window: int | None) -> None:
    """Forward and backward allocate less than the row's mask would; the masked path allocates more."""
    lengths, peaks = [2048] + [128] * 48, {}
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_window_layers=0,
        sliding_window=window,
        use_sliding_window=window is not None,
    )
    model = Qwen2ForCausalLM(config)
    assert set(config.layer_types) == {"sliding_attention" if window else "full_attention"}
    random = np.random.default_rng(0)
    batch = build_packed_batch([TrainSequence(token_ids=random.integers(0, 16, n), trained_from=1) for n in lengths])
    for implementation in ("sdpa", VARLEN):
        model.set_attn_implementation(implementation)
        with LiveBytes() as bytes_:
            logprobs, _ = RowReader(model, CPU).forward(batch, 1.0)
            logprobs.sum().backward()
        peaks[implementation] = bytes_.peak
    assert peaks[VARLEN] < sum(lengths) ** 2 / 4
    assert peaks[VARLEN] < peaks["sdpa"] / 2
