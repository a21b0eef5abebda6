"""Check that a run on nodes without internet reads only local files."""

from pathlib import Path

from slurm_rl.config.paths import expand_user
from slurm_rl.config.run import RunConfig
from slurm_rl.config.user_parts import is_model, named_paths
from slurm_rl.errors import ConfigError
from slurm_rl.launch.runs.model_shape import find_planned

_WITH_TOKENIZER = ("model.path", "reward.judge.server.model")


def check_local_files(config: RunConfig) -> None:
    """Raise ConfigError if a model or data set is not on this machine; the others checked its content."""
    root, problems = config.data.root, []
    for key, path in named_paths(config).items():
        folder = expand_user(path)
        if key == "model.from_config":
            continue  # always local
        if is_model(key):
            # model.path may be the export of a run that has not finished.
            if not (find_planned(path) or _is_model(folder, key)):
                problems.append(f"{key}={path} (python -m slurm_rl prepare model {path} --root {root})")
        elif not folder.exists():
            problems.append(f"{key}={path} (python -m slurm_rl prepare <data set> --root {root}, or a local copy)")
    if problems:
        raise ConfigError(
            "cluster.internet=false needs local models, with weights and tokenizer, and local data",
            seen="; ".join(problems),
            action="run the commands in brackets on a machine with internet",
        )


def _is_model(folder: Path, key: str) -> bool:
    # Other roles use the tokenizer of the policy.
    needed = ["config.json", "*.safetensors"]
    needed += ["tokenizer*"] if key in _WITH_TOKENIZER or key.endswith("reward.model.path") else []
    return all(any(folder.glob(pattern)) for pattern in needed)
