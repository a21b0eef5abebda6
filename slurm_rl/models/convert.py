"""Convert a policy checkpoint to a Hugging Face folder, without the ranks that wrote it.

    rank-0.pt rank-1.pt ...  --one tensor at a time-->  model-00001-of-00003.safetensors ... + config + tokenizer

Shards are mapped, not read: memory holds one output file, its copy and one tensor. The final comparison of logits takes
a
whole model.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from slurm_rl.config.model import ModelConfig
from slurm_rl.errors import CheckpointError
from slurm_rl.models.export import copy_processors, publish, write_shards
from slurm_rl.models.load_model import load_model, load_tokenizer, model_class, open_model
from slurm_rl.models.lora import merge_into_base
from slurm_rl.models.published_names import plain_name
from slurm_rl.models.rope import load_architecture
from slurm_rl.models.saved_weights import read_parameters
from slurm_rl.models.weight_files import check_complete
from slurm_rl.run_dir.io_errors import written_beside
from slurm_rl.run_dir.meter import Advance, measure
from slurm_rl.run_dir.run_dir import read_json


def convert_checkpoint(
    policy: Path, model_path: str, model: ModelConfig, out: Path, max_shard_bytes: int, *, check_logits: bool = True
) -> int:
    """Write the parameters of a checkpoint as a Hugging Face folder; return the number of parameters.

    Args:
        policy: folder `policy` of a checkpoint that verifies.
        model_path: architecture and tokenizer.
        out: appears whole, or not at all.
        check_logits: compare logits; takes the memory of a whole model in float32.

    Raises:
        CheckpointError: the checkpoint is of another model, or the logits differ.
    """
    config = load_architecture(model_path, model)
    config.dtype = getattr(torch, model.dtype)
    if "score.weight" in read_json(policy / "layout.json")["parameters"]:
        _make_reward_model(config, model_path, model)
    with torch.device("meta"):
        module = _class_of(config).from_config(config, trust_remote_code=model.trust_remote_code)

    def read() -> Iterator[tuple[str, Tensor]]:
        return _check_all(_read_model(policy, model_path, model, module), module, model, model_path)

    with written_beside(out) as beside:
        with measure("converting parameters", _count_bytes(module, model.dtype)) as advance:
            shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
            published = publish(module, read(), shapes)
            count = write_shards(beside, _tell_size(published, advance), max_shard_bytes)
        config.save_pretrained(beside)
        load_tokenizer(model_path, trust_remote_code=model.trust_remote_code).save_pretrained(beside)
        copy_processors(model_path, beside)
        if check_logits:
            logging.disable_progress_bar()  # two on one terminal write over each other
            with measure("comparing logits"):
                require_same_logits(_class_of(config), config, read(), beside, model.trust_remote_code)
    return count


def _count_bytes(module: Any, dtype: str) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) * getattr(torch, dtype).itemsize


def _tell_size(tensors: Iterable[tuple[str, Tensor]], advance: Advance) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        yield name, tensor
        advance(tensor.nbytes)


def _check_all(
    tensors: Iterable[tuple[str, Tensor]], module: Any, model: ModelConfig, model_path: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter once, in the model's dtype; raise CheckpointError if one is missing or misshaped."""
    # Each parameter under the first of its names, and the buffers that are saved.
    tied = {name for name, _ in module.named_parameters(remove_duplicate=False)} - dict(
        module.named_parameters()
    ).keys()
    wanted = {name: tensor.shape for name, tensor in module.state_dict().items() if name not in tied}
    rule, action = "the checkpoint must be of the model", "name the run whose config made the checkpoint"
    for name, tensor in check_complete(tensors, wanted, CheckpointError, rule, seen=model_path, action=action):
        yield name, tensor.to(_dtype(model))


def _read_model(policy: Path, model_path: str, model: ModelConfig, module: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and saved buffers by the plain model's names, adapters merged into their base."""
    seed = 0 if hasattr(module, "score") else None
    # Routers of some mixtures have a bias that is a buffer. It is not trained, so it is the base's.
    buffers = module.state_dict().keys() - {name for name, _ in module.named_parameters(remove_duplicate=False)}
    if model.lora is None:
        yield from read_parameters(policy)
        if buffers:
            base = load_model(model_path, model, score_seed=seed)
            yield from ((name, tensor) for name, tensor in base.named_buffers() if name in buffers)
        return
    adapters = {plain_name(name): tensor for name, tensor in read_parameters(policy)}
    # Its own names, which the adapters have too: in the files some families have others.
    base, files = open_model(model_path, model, score_seed=seed)
    wanted = [*base.named_parameters(), *((name, tensor) for name, tensor in base.named_buffers() if name in buffers)]
    tensors = (
        (name, (files.read(name) if files is not None and tensor.is_meta else tensor.detach()).to(_dtype(model)))
        for name, tensor in wanted
    )
    yield from merge_into_base(tensors, adapters, model.lora)


def _dtype(model: ModelConfig) -> torch.dtype:
    found: torch.dtype = getattr(torch, model.dtype)
    return found


def _make_reward_model(config: Any, model_path: str, model: ModelConfig) -> None:
    """Set the fields of a reward model in the config of a language model."""
    config.num_labels = 1
    if config.pad_token_id is None:
        config.pad_token_id = load_tokenizer(model_path, trust_remote_code=model.trust_remote_code).pad_token_id
    with torch.device("meta"):
        config.architectures = [type(AutoModelForSequenceClassification.from_config(config)).__name__]


def _class_of(config: Any) -> Any:
    is_scorer = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    return AutoModelForSequenceClassification if is_scorer else model_class(config)


TOLERANCE = 1e-5
_PROMPT_TOKENS = 32


def require_same_logits(
    model_class: Any, config: Any, source: Iterable[tuple[str, Tensor]], folder: Path, trust_remote_code: bool
) -> float:
    """Load `folder`, compare logits with `source` in float32 and return the largest difference.

    Raises:
        CheckpointError: it is above 1e-5.
    """
    text = config.get_text_config()
    prompt = (torch.arange(_PROMPT_TOKENS) * 7919 + 11) % text.vocab_size  # 7919 is prime: tokens from everywhere
    expected = _compute(_fill(model_class, config, source, trust_remote_code), prompt)
    written = model_class.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=trust_remote_code
    )
    difference = float((_compute(written, prompt) - expected).abs().max())
    if not difference <= TOLERANCE:
        raise CheckpointError(
            f"logits of the written model must equal those of the checkpoint to {TOLERANCE:g}",
            seen=f"a difference of {difference:g} on {_PROMPT_TOKENS} tokens",
            action="report a bug; --no-check skips this comparison",
        )
    return difference


@torch.no_grad()
def _fill(model_class: Any, config: Any, source: Iterable[tuple[str, Tensor]], trust_remote_code: bool) -> Any:
    model = model_class.from_config(config, trust_remote_code=trust_remote_code).float()
    state = model.state_dict()
    for name, tensor in source:
        state[name].copy_(tensor)
    return model


@torch.no_grad()
def _compute(model: Any, prompt: Tensor) -> Tensor:
    logits: Tensor = model.eval()(input_ids=prompt.unsqueeze(0), use_cache=False).logits
    return logits
