"""Every family of text models as a tiny model from its config, and whether its sequences can be packed.

python -m tests.train.model_families        writes docs/reference/model-families.md
"""

import csv
import importlib.util
import math
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from slurm_rl.algorithms.packing import build_packed_batch
from slurm_rl.algorithms.sequences import FloatArray, TrainSequence
from slurm_rl.config.model import VISION_FAMILIES, LoraConfig
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.launch.runs.model_checks import DISAGREEING
from slurm_rl.models.export import export_model
from slurm_rl.models.forward import RowReader
from slurm_rl.models.lora import add_adapters, merge_state
from slurm_rl.models.lora_layers import AdaptedLayers
from slurm_rl.models.row_check import check_rows
from slurm_rl.models.weight_files import check_complete

LORA_PRESETS = {
    name: LoraConfig(**yaml.safe_load((Path(__file__).parents[2] / f"conf/lora/{name}.yaml").read_text()))
    for name in ("all_linear", "attention")
}
_SCALE = 0.1
"""Scale of the families' large random weights; smaller weights keep rounding below 1e-6."""


@dataclass(frozen=True)
class LoraFinding:
    """One preset on one family."""

    layers: AdaptedLayers | None
    """None if the preset is refused."""
    refusal: str = ""
    learned: float = 0.0
    """Largest change of a logprob by the adapters, in nats."""
    merged: float = 0.0
    """Largest difference between the model with adapters and with merged weights."""
    reloaded: float = 0.0
    """The same for the export loaded by transformers."""
    misfits: tuple[str, ...] = ()
    """Tensors that transformers reports as missing or unexpected in the export."""


def study_adapters(build: Any, preset: str) -> LoraFinding:
    """Adapt a model, draw random adapters, merge, export and reload it.

    Args:
        build: returns the same random model in every call.
    """
    torch.set_num_threads(1)
    config = LORA_PRESETS[preset].model_copy(update={"rank": 2, "alpha": 4.0})
    model, plain = _scale(build()), _scale(build())
    shapes = {name: tuple(tensor.shape) for name, tensor in plain.state_dict().items()}
    before = compute_logprobs(model)
    try:
        layers = add_adapters(model, config, seed=1)
    except ConfigError as error:
        return LoraFinding(None, str(error))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ".lora_B." in name:
            nn.init.normal_(parameter, std=0.05)
    model.eval()
    trained = compute_logprobs(model)

    def merged() -> Any:
        state = merge_state(model.state_dict().items(), config)
        return check_complete(state, shapes, CheckpointError, "complete", seen="", action="")

    plain.load_state_dict(dict(merged()))
    with tempfile.TemporaryDirectory() as folder:
        export_model(model, merged(), _NoTokenizer(), Path(folder) / "export", shapes=shapes, processors_of=folder)
        loaded, info = AutoModelForCausalLM.from_pretrained(
            Path(folder) / "export", output_loading_info=True, attn_implementation=model.config._attn_implementation
        )
        found = compute_logprobs(loaded.eval())
    misfits = [str(name) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[kind]]
    return LoraFinding(
        layers,
        learned=_distance(trained, before),
        merged=_distance(trained, compute_logprobs(plain)),
        reloaded=_distance(trained, found),
        misfits=tuple(misfits),
    )


class _NoTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        """Write nothing."""


@torch.no_grad()
def _scale(model: PreTrainedModel) -> PreTrainedModel:
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.mul_(_SCALE)
    return model


@torch.no_grad()
def compute_logprobs(model: PreTrainedModel) -> Tensor:
    """Return the logprobs of all tokens at 21 random positions."""
    ids = torch.randint(8, 60, (1, 21), generator=torch.Generator().manual_seed(0))
    logprobs: Tensor = model(input_ids=ids, use_cache=False).logits[0].double().log_softmax(-1)
    return logprobs


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


PAGE = Path(__file__).parents[2] / "docs/reference/model-families.md"
ENGINES = Path(__file__).with_name("engine_families.csv")
CPU = torch.device("cpu")
VOCABULARY = 64
EXACT = 1e-5

# Each family takes the keys that its config has. Windows are shorter than the sequences, to have an effect.
_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "intermediate_size_mlp"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("sliding_window", "attention_window_size", "window_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_dt_rank", "time_step_rank"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "block_size"), 16),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    "num_key_value_heads": 2,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Large, so that errors are large too.
    **dict.fromkeys(("initializer_range", "init_std"), 0.2),
    **dict.fromkeys(("attention_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "dropout"), 0.0),
    **dict.fromkeys(("hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"), 0.0),
}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2}
_MLA: dict[str, Any] = {"num_key_value_heads": 4, "qk_rope_head_dim": 4, "head_dim": 4, "n_group": 2, "topk_group": 1}
# More than the sequences have: scores of a tiny indexer are often 0, and the choice among equal ones depends on the
# layout. Real indexers start to select after 2,048 tokens.
_INDEX = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 128}
_MROPE = {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0, "mrope_section": [2, 1, 1]
    }
}  # fmt: skip

_PLAIN = """
afmoe apertus arcee aria_text bert biogpt bitnet bloom cohere cohere2_moe ctrl cwm deepseek_v4 diffllama doge ernie4_5
exaone_moe falcon falcon_mamba flex_olmo gemma gemma4_unified_text glm glm4 gpt2 gpt-sw3 gpt_bigcode gpt_neox
gpt_neox_japanese granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hrm_text hunyuan_v1_dense
hunyuan_v1_moe hy_v3 hy_v4 hyperclovax inkling_text jais2 laguna llama mamba mellum mimo_v2_flash minimax_m2
minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2
olmo_hybrid olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe roberta rwkv seed_oss
smollm3 solar_open stablelm starcoder2 xglm
"""
"""Families that need no keys beyond the common shape."""
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {} for family in _PLAIN.split()},
    "axk1": {**_MLA, "n_group": 1},
    "axk2": {**_MLA, "n_group": 1},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "cohere2": _SLIDING,
    "deepseek_v2": {**_MLA, "topk_method": "greedy"},
    "deepseek_v3": _MLA,
    "deepseek_v32": {**_MLA, "n_group": 1, **_INDEX},
    "dots1": {"n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    "exaone4": _SLIDING,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gemma2": _SLIDING,
    "gemma3_text": _SLIDING,
    "gemma3n_text": {
        **_SLIDING,
        "num_kv_shared_layers": 0,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0, 0.0],
        "altup_num_inputs": 2,
    },
    "gemma4_text": {**_SLIDING, "global_head_dim": 8, "num_kv_shared_layers": 0},
    "glm4_moe": {"n_group": 1, "topk_group": 1},
    "glm4_moe_lite": {**_MLA, "n_group": 1},
    "glm_moe_dsa": {**_MLA, "n_group": 1, **_INDEX},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gpt_oss": _SLIDING,
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"kv_channels": 8},
    "kimi_linear": {
        **_LINEAR,
        "qk_rope_head_dim": 4,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {
        "layer_types": ["chunked_attention", "full_attention"],
        "moe_layers": [1],
        "interleave_moe_layer_step": 1,
    },
    "longcat_flash": {
        "qk_rope_head_dim": 4,
        "head_dim": 4,
        "num_key_value_heads": 4,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 16,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "expand": 2},
    "minicpm3": _MLA,
    "minimax": _LINEAR,
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2
    },
    "olmo3": _SLIDING,
    "qwen3_5_moe_text": {**_LINEAR, **_MROPE},
    "qwen3_5_text": {**_LINEAR, **_MROPE},
    "qwen3_next": _LINEAR,
    "qwen4_exp_text": {
        **_LINEAR,
        **_MROPE,
        "ngram_vocab_size_base": 64,
        "split_ngram_parts": 2,
        "hc_lowrank": 8,
        "ple_embed_dim": 32,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 128,
        "indexer_compress_ratio": 1,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32},
    "vaultgemma": _SLIDING,
    "youtu": _MLA,
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Model type of transformers -> config keys of its tiny model beyond the common shape."""


def build_model(
    family: str, dtype: torch.dtype = torch.float32, own: dict[str, Any] | None = None, **other: Any
) -> PreTrainedModel:
    """Build a random model of two layers, one of each kind if there are two; eager attention without sdpa.

    Args:
        own: config keys of this family in place of those of `FAMILIES`.
        other: config keys in place of the common ones, for families that have them.
    """
    kind = CONFIG_MAPPING[family]
    known = vars(kind())
    fields = {name: value for name, value in _SHAPE.items() if name in known} | FAMILIES[family]
    fields |= {name: value for name, value in other.items() if name in known} | (own or {})
    config = kind(**fields)
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.config.use_cache = False
    built: PreTrainedModel = model.to(dtype).eval()
    return built


@dataclass(frozen=True)
class Finding:
    """One row of the page."""

    rows: str
    """`packed`, `one a row` or `refused`."""
    if_packed: float
    """Largest logprob error in packed rows, in nats; NaN if the model cannot run packed."""
    as_chosen: float
    """Largest logprob error in the chosen layout; NaN for a refused model."""
    crosses: bool
    """Whether a gradient reaches another sequence in the chosen layout."""
    reason: str = ""


def study(family: str) -> Finding:
    """Determine how the trainer lays out this family, and the errors."""
    torch.set_num_threads(1)  # more threads are slower on tensors this small
    model = build_model(family)
    try:
        found = check_rows(RowReader(model, CPU), torch.float32)
    except ConfigError as error:
        return Finding("refused", math.nan, math.nan, False, str(error.seen))
    expected = [_compute_plain(model, sequence) for sequence in build_sequences()]

    def worst(packed: bool) -> float:
        values = RowReader(model, CPU, packed=packed).compute_logprobs(build_sequences(), 1.0)
        return max(float(np.abs(one - other).max()) for one, other in zip(values, expected, strict=True))

    rows = "packed" if found.packed else "one a row"
    return Finding(rows, worst(True), worst(found.packed), _gradient_crosses(model, found.packed), found.reason)


def build_sequences() -> list[TrainSequence]:
    """Build sequences with disjoint tokens, so that a gradient shows its source; they share rows."""
    random = np.random.default_rng(7)
    return [
        TrainSequence(token_ids=random.integers(8 + 10 * index, 18 + 10 * index, length), trained_from=1)
        for index, length in enumerate((33, 12, 19))
    ]


@torch.no_grad()
def _compute_plain(model: PreTrainedModel, sequence: TrainSequence) -> FloatArray:
    ids = torch.from_numpy(sequence.token_ids)
    table = model(input_ids=ids[None], use_cache=True).logits[0].log_softmax(-1)
    values: FloatArray = table[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    return values


def _gradient_crosses(model: PreTrainedModel, packed: bool) -> bool:
    """Return whether the logprobs of one sequence have a gradient in the embedding of another's token."""
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: Any, ids: tuple[Tensor, ...], embedded: Tensor) -> None:
        embedded.retain_grad()
        seen.append((ids[0], embedded))

    embedding: Any = model.get_input_embeddings()
    hook = embedding.register_forward_hook(keep)
    batch = build_packed_batch(build_sequences())
    logprobs, _ = RowReader(model, CPU, packed=packed).forward(batch, 1.0)
    hook.remove()
    logprobs[batch.sequence_ids == 1].sum().backward()  # type: ignore[no-untyped-call]
    ids, embedded = seen[0]
    assert embedded.grad is not None
    reached = embedded.grad.abs().sum(-1) > 0
    own = (ids >= 18) & (ids < 28)
    assert reached[own].any()
    return bool((reached & (ids >= 8) & ~own).any())


def study_lora(family: str, preset: str) -> LoraFinding:
    """Return the layers of this family that a preset of conf/lora covers."""
    return study_adapters(partial(build_model, family), preset)


def render_page(findings: dict[str, Finding], adapted: dict[str, list[LoraFinding]]) -> str:
    """Return the page of documentation."""
    lines = [
        f"| {family} | {found.rows} | {_render_error(found.if_packed)} | {_render_error(found.as_chosen)} | "
        f"{' | '.join(map(render_share, adapted[family]))} | {render_engine(family)} |"
        for family, found in sorted(findings.items())
    ]
    counts = {
        rows: sum(found.rows == rows for found in findings.values()) for rows in ("packed", "one a row", "refused")
    }
    text, vision = list_types(AutoModelForCausalLM), list_types(AutoModelForImageTextToText)
    return _PAGE.format(
        version=transformers.__version__,
        table="\n".join(lines),
        others=", ".join(sorted(text - FAMILIES.keys() - vision)),
        seen=", ".join(VISION_FAMILIES),
        disagreeing=list_disagreeing(),
        unseen=", ".join(sorted(vision - set(VISION_FAMILIES))),
        **{k.replace(" ", "_"): v for k, v in counts.items()},
    )


def list_types(auto: Any) -> set[str]:
    """Return the model types of one of transformers' Auto classes."""
    return {name for name in CONFIG_MAPPING if CONFIG_MAPPING[name] in auto._model_mapping}


def list_disagreeing() -> str:
    """Return the families that `plan` refuses, with the reasons."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for (family, dtype), reason in DISAGREEING.items():
        kinds.setdefault((family, reason), []).append(dtype)
    named = {f"{family}{' in float32' * (len(kind) == 1)}": reason for (family, reason), kind in kinds.items()}
    return "; ".join(f"{name} ({reason})" for name, reason in named.items())


def render_engine(family: str) -> str:
    """Return the cell of the comparison with vLLM, which tests/train/engine_families.py makes."""
    with ENGINES.open(encoding="utf-8", newline="") as file:
        found = {row["family"]: row for row in csv.DictReader(file)}.get(family)
    if found is not None:
        return found["result"]
    classes = AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[family]]
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    registry = (Path(spec.origin).parent / "model_executor/models/registry.py").read_text(encoding="utf-8")
    return "not compared" if f'"{classes.__name__}"' in registry else "not in vLLM"


def render_share(found: LoraFinding) -> str:
    """Return the cell of a LoRA preset."""
    return "refused" if found.layers is None else f"{found.layers.share:.0%}"


def _render_error(error: float) -> str:
    return "" if math.isnan(error) else "exact" if error < EXACT else f"{error:.1g}"


_PAGE = """# Model families

Written by `python -m tests.train.model_families` with transformers {version}; do not edit.

The trainer packs several sequences into one row. In some models packed sequences silently affect each other: recurrent
and convolutional layers carry their state over the boundary, and some masks and positions count from the start of the
row. Therefore every loaded model is tested on random tokens (`slurm_rl/models/row_check.py`), with its own weights,
dtype and sharding:

* **packed**: every packed sequence gives the same result as in a row of its own.
* **one a row**: packed sequences do not; each gets its own row. This is exact but needs padding. The event
  `trainer/not_packed`, the metric `policy/packed` (0) and the summary report it.
* **refused**: even one sequence per row differs from the model's own forward pass, for example if tokens see later
  ones.

The table has one tiny random model per family, built from its config, with `model.attention=sdpa` if supported,
otherwise `eager`: {packed} packed, {one_a_row} one a row, {refused} refused. Errors are the largest difference of a
logprob from the model's own forward pass on each separate sequence, in nats; *exact* is below 1e-5 in float32.

| model type | rows | error if packed | error as chosen | +lora=all_linear | +lora=attention | engine |
| --- | --- | --- | --- | --- | --- | --- |
{table}

A family with rows is trained by task=sft and dpo, and by task=rm if transformers has its classifier. task=grpo also
needs the family in vLLM; the column *engine*, written by `python -m tests.train.engine_families`, is the largest
difference of a logprob between vLLM's CPU build and the policy on sampled tokens, as loaded and after two weight
syncs; *exact* is below 1e-5 in float32. Families with linear attention are compared in bfloat16, the only format of
vLLM's CPU kernel, so `plan` refuses them on CPU in float32. *not in vLLM*: vLLM has no class of its own; *not
compared*: not run yet; another text: why vLLM's CPU build does not run the tiny model. In every run the weight sync
compares policy and engine before the first sample. tests/train/test_vllm_engine.py compares qwen3_moe, mixtral,
gpt_oss, deepseek_v3, glm4_moe and granitemoe after three syncs each way.

`plan` refuses task=grpo where policy and engine differ: {disagreeing}.

transformers also lists these types as causal language models; they are encoders, encoder-decoders, speech and music
models, or build no tiny model: {others}.

## Vision

Trained with images by task=sft, dpo and grpo; equal to transformers (tests/train/test_engine_vision.py), and vLLM and
the policy agree as loaded and after syncs (tests/train/test_vision_engines.py): {seen}.

Refused by `plan`, since the trainer does not lay out their image tokens and positions: {unseen}.

## LoRA

The last two columns are the share of the matrices' parameters, without embeddings and output head, that gets an
adapter. The event `trainer/adapters` records it for the model of a run, with the names of the matrices without an
adapter. The model with adapters, the merged weights and the export as transformers loads it agree to 1e-6 in float32.

`+lora=all_linear` adapts every linear layer, including those of a vision tower, but not

* the output head and the embeddings;
* the fused experts of a mixture of experts (one parameter for all experts) and its router, so most of its weights have
  no adapter;
* in a state-space mixer (Mamba) `x_proj`, `dt_proj` and `out_proj`: its kernels read their weights directly.

`+lora=attention` is *refused* where the attention's projections have names other than q_proj, k_proj, v_proj and
o_proj; the message lists the names for `model.lora.target_modules`. All LoRA is refused for models whose layers are
not `nn.Linear` (GPT-2). With `model.lora.export=adapter`, gate_proj, up_proj and down_proj are refused in mixtures in
which peft takes these names for the experts. The files of hrm_text hold several layers as one tensor, so GRPO refuses
adapters on them with `rollout.weight_transfer=ray`.
"""


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    adapted = {family: [study_lora(family, preset) for preset in LORA_PRESETS] for family in FAMILIES}
    PAGE.write_text(render_page({family: study(family) for family in FAMILIES}, adapted), encoding="utf-8")


if __name__ == "__main__":
    main()
