import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from omegaconf import DictConfig

from slurm_rl.launch.sweep import sweeper
from tests.whole_run import whole_run

__all__ = ["whole_run"]

# The duration of an example depends more on the machine than on the code.
settings.register_profile("slurm_rl", deadline=None)
settings.load_profile("slurm_rl")

# A background job of a script ignores SIGINT, and its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _state_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep submissions of session fixtures out of the developer's home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _presets_composed_once() -> Iterator[None]:
    """Let Hydra compose each choice of shipped presets once per process: it needs 0.3 s, a copy with values 0.03 s.

    A sweep makes the same copies; tests/unit/config/test_sweep_trees.py compares them with Hydra's own configs.
    """
    composers: list[sweeper.Composer] = []

    def compose(words: list[str]) -> DictConfig:
        if any(word.startswith("hydra.searchpath=") for word in words):  # presets of a site, which may change
            return sweeper.hydra_compose(words)
        if not composers:
            composers.append(sweeper.Composer([]))
        return composers[0].compose_config(words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurm_rl.config.load.hydra_compose", compose)
        patch.setattr("slurm_rl.config.detect_gpus.TOOLS", ())  # tests do not depend on this machine's GPUs
        yield


@pytest.fixture(autouse=True)
def _state_of_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep submissions of one test out of the next one.

    Not with `monkeypatch`: it must be undone before other fixtures.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
