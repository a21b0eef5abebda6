"""Are the weights of model.init_from those of the model? Told from headers and config, without torch."""

from __future__ import annotations

from slurm_rl.cli.headers import read_shapes
from slurm_rl.cli.model_shape import find_shape
from slurm_rl.config.model import ModelConfig
from slurm_rl.config.paths import expand_user
from slurm_rl.errors import ConfigError

_SHOWN = 3
_EMBEDDING = "embed_tokens.weight"
_NUM_SPECIAL = 2  # padding and end of text


def check_same_model(field: str, weights: str | None, model: ModelConfig) -> None:
    """Refuse weights whose shapes are not the model's, as far as this machine sees both.

    Raises:
        ConfigError: gives both shapes.
    """
    found = {} if weights is None else read_shapes(expand_user(weights))
    wanted = _expected(model)
    # Some models have names of their own once they are loaded; the trainer compares those, too.
    wrong = {name: shape for name, shape in found.items() if (short := _find(wanted, name)) and wanted[short] != shape}
    if wrong:
        told = "; ".join(f"{name} {wrong[name]}" for name in sorted(wrong)[:_SHOWN])
        needed = "; ".join(f"{wanted[_find(wanted, name) or name]}" for name in sorted(wrong)[:_SHOWN])
        raise ConfigError(
            f"the weights of {field} must have the shapes of the model ({needed})",
            seen=f"{told} in {weights}",
            action=f"point {field} at weights of the same architecture and size",
        )


def _find(wanted: dict[str, list[int]], name: str) -> str | None:
    return name if name in wanted else next((key for key in wanted if name.endswith(f".{key}")), None)


def _expected(model: ModelConfig) -> dict[str, list[int]]:
    """Shapes by name; where no weights are to be seen, that of the embedding alone, which tells most models apart."""
    if model.path is None:
        tiny = model.tiny
        return {} if tiny is None else {_EMBEDDING: [len(tiny.characters) + _NUM_SPECIAL, tiny.hidden_size]}
    folder = expand_user(model.path)
    if shapes := read_shapes(folder):
        return shapes
    shape = find_shape(model)
    return {} if shape is None else {_EMBEDDING: [shape.vocab_size, shape.hidden_size]}
