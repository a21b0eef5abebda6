"""Draw the weights of a model that has none."""

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig
from transformers.utils import logging

from slurm_rl.config.model import ModelConfig
from slurm_rl.models.load_model import load_tokenizer, model_class
from slurm_rl.run_dir.io_errors import written_beside

_WEIGHTS = shutil.ignore_patterns("*.safetensors", "*.bin", "*.index.json")


def draw_model(config: ModelConfig, seed: int, target: Path) -> None:
    """Write the model of `from_config` with random weights to `target`, whole or not at all.

    Equal seeds give equal bytes.

    Raises:
        ConfigError: the folder has no tokenizer.
    """
    assert config.source is not None
    source = Path(config.source).expanduser()
    tokenizer = load_tokenizer(source, trust_remote_code=config.trust_remote_code)
    architecture = AutoConfig.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    logging.disable_progress_bar()  # a log file is no terminal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(architecture).from_config(architecture, trust_remote_code=config.trust_remote_code)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    with written_beside(target) as beside:
        shutil.copytree(source, beside, dirs_exist_ok=True, ignore=_WEIGHTS)
        model.to(torch.float32).save_pretrained(beside)
