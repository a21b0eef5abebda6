"""LoRA on every family of text models: layers covered by a preset; trained, merged and exported models agree."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from slurm_rl.config.model import LoraConfig
from slurm_rl.errors import CheckpointError, ConfigError
from slurm_rl.models.export import export_model
from slurm_rl.models.lora import add_adapters, merge_state
from slurm_rl.models.lora_layers import AdaptedLayers
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
        state = merge_state(model.state_dict().items(), config.scaling)
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
