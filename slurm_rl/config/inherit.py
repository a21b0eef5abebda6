"""Settings that an evaluation inherits from the run that trained its model."""

from collections.abc import Sequence
from typing import Any, Final

from slurm_rl.config.run import RunConfig
from slurm_rl.config.usage import find_changed, find_readers

_INHERITED: Final = (
    *("data.", "rollout.", "reward.", "env.", "eval.sets"),
    *("model.dtype", "model.trust_remote_code", "model.min_pixels", "model.max_pixels"),
)
_LEFT_OUT: Final = (
    # Training rows, and the placement of engines next to a policy.
    *("data.train", "data.train_split", "data.eval", "data.eval_split", "data.num_eval", "data.sources"),
    *("data.curriculum", "rollout.num_engines", "rollout.tensor_parallel_size", "rollout.colocate"),
    *(
        "rollout.node_group",
        "rollout.max_off_policy_steps",
        "rollout.inflight_weight_updates",
        "rollout.weight_transfer",
    ),
    *("rollout.dump", "rollout.replay"),
)


def inherit(tree: dict[str, Any], source: RunConfig, words: Sequence[str]) -> None:
    """Copy to `tree` the settings of `source` that affect evaluation results and are not defaults.

    Args:
        tree: config of the evaluation, composed from `words`.
        source: config of the run that trained the model.
        words: overrides; keys, sections and presets that they name are not changed.
    """
    named = {word.lstrip("+~").partition("=")[0] for word in words}
    values = source.model_dump(mode="json")
    for key, _ in find_changed(source):
        is_meant = key.startswith(_INHERITED) and not any(_overlap(key, other) for other in _LEFT_OUT)
        if is_meant and "grpo" in find_readers(key, "grpo") and not any(_overlap(key, other) for other in named):
            *path, name = key.split(".")
            of_tree, of_source = tree, values
            for part in path:
                of_tree, of_source = of_tree[part], of_source[part]
            of_tree[name] = of_source[name]


def _overlap(key: str, other: str) -> bool:
    """Return whether one of two dotted keys equals or contains the other.

    >>> _overlap("data.train", "data.train"), _overlap("data.train", "data"), _overlap("data.train_split", "data.train")
    (True, True, False)
    """
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
