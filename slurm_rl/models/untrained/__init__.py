"""Models that start from random weights: folders with config.json and tokenizer, as `model.from_config` names them."""
