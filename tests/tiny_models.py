"""Small models with random weights: the shipped ones of `model.from_config` with other sizes or alphabets."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from slurm_rl.config.model import ModelConfig

_SHIPPED = Path(__file__).parents[1] / "slurm_rl" / "models" / "untrained"
_HERE = Path(__file__).with_name("models")
SMALL_MODEL = f"model.from_config={_HERE / 'small_qwen3'}"
"""Override for a model of width 64 with two layers."""


@dataclass(frozen=True)
class TinyModel:
    """A Qwen3 with one token per character; the defaults are those of tiny_qwen3."""

    characters: str = "0123456789+="
    chat_template: str | None = None
    hidden_size: int = 128
    num_layers: int = 3
    num_heads: int = 4
    num_kv_heads: int = 2
    context_length: int = 64

    def write(self, folder: Path) -> Path:
        """Write config.json and the tokenizer; without transformers."""
        shutil.copytree(_SHIPPED / "tiny_qwen3", folder, dirs_exist_ok=True)
        vocabulary = {token: place for place, token in enumerate(["<pad>", "<eos>", *self.characters])}
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"] = vocabulary
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["model_max_length"] = self.context_length
        config = json.loads((folder / "config.json").read_text()) | _sizes(self, len(vocabulary))
        config["layer_types"] = ["full_attention"] * self.num_layers
        files = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings, "config.json": config}
        for name, tree in files.items():
            (folder / name).write_text(json.dumps(tree, indent=2) + "\n")
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template)
        return folder

    @property
    def word(self) -> str:
        """Return the override that selects it, with a folder in the temporary directory."""
        return _word(self.write)


SMALL = TinyModel(hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1)
"""The model of SMALL_MODEL."""


@dataclass(frozen=True)
class TinyVL:
    """A Qwen-VL of width 64 with one token per byte."""

    family: str = "qwen2_5_vl"

    def write(self, folder: Path) -> Path:
        shutil.copytree(_SHIPPED / "tiny_qwen2_5_vl", folder, dirs_exist_ok=True)
        if self.family != "qwen2_5_vl":
            shutil.copytree(_HERE / "tiny_qwen3_vl", folder, dirs_exist_ok=True)
        if self.family in _LIKE_QWEN3_VL:
            architecture, fields = _LIKE_QWEN3_VL[self.family]
            config = json.loads((folder / "config.json").read_text())
            config |= {"model_type": self.family, "architectures": [f"{architecture}ForConditionalGeneration"]}
            config["text_config"] |= {"model_type": f"{self.family}_text", **fields}
            config["vision_config"]["model_type"] = f"{self.family}_vision"
            if "linear_num_key_heads" in fields:
                config["vision_config"]["deepstack_visual_indexes"] = []
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return folder


# Another size than the hidden one: transformers tells the two layouts of experts apart by their shapes.
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
_LIKE_QWEN3_VL: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_vl_moe": ("Qwen3VLMoe", _EXPERTS),
    "qwen3_5": ("Qwen3_5", _LINEAR),
    "qwen3_5_moe": ("Qwen3_5Moe", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 64}),
}
"""Architecture and text_config of families that differ from Qwen3-VL in the language model."""


def _sizes(config: TinyModel, vocab_size: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": 3 * config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.hidden_size // config.num_heads,
        "max_position_embeddings": config.context_length,
    }


def shape_of(config: TinyModel, tokenizer: Any) -> dict[str, Any]:
    """Return the arguments of a config of transformers."""
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return {**_sizes(config, len(tokenizer)), "tie_word_embeddings": True, **tokens}


def build_tiny_model(config: TinyModel | TinyVL, seed: int, folder: Path) -> None:
    """Write the model with weights; equal seeds give equal bytes."""
    from slurm_rl.models.untrained.draw import draw_model

    with tempfile.TemporaryDirectory() as empty:
        source = config.write(Path(empty) / "model")
        draw_model(ModelConfig(from_config=str(source)), seed, folder)


def build_character_tokenizer(config: TinyModel) -> Any:
    """Return a tokenizer with <pad> 0, <eos> 1, then the characters in order."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as empty:
        return AutoTokenizer.from_pretrained(config.write(Path(empty) / "model"))


def draw_weights(build: Callable[[], Any], tokenizer: Any, seed: int) -> Any:
    """Return the model of `build` with seeded weights and the tokenizer's end of text."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model.to(torch.float32)


def shrink(example: str) -> str:
    """Return the override for an example's model of width 64 with two layers."""

    def write(folder: Path) -> None:
        shutil.copytree(Path(__file__).parents[1] / "examples" / example, folder, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_text())
        small = replace(SMALL, context_length=config["max_position_embeddings"])
        config |= _sizes(small, config["vocab_size"]) | {"layer_types": ["full_attention"] * 2}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    return _word(write)


def _word(write: Callable[[Path], object]) -> str:
    """Write a folder whose name is the hash of its files, so that processes share it."""
    kept = Path(tempfile.gettempdir()) / f"slurm_rl-tiny-models-{os.getuid()}"
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as beside:
        write(Path(beside) / "new")
        files = b"".join(path.name.encode() + path.read_bytes() for path in sorted((Path(beside) / "new").iterdir()))
        folder = kept / sha256(files).hexdigest()[:16]
        with contextlib.suppress(OSError):  # another process created it first
            (Path(beside) / "new").rename(folder)
    return f"model.from_config={folder}"
