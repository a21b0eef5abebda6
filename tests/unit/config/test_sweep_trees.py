from collections.abc import Callable

import pytest

from slurm_rl.config.load import compose, open_hydra
from slurm_rl.config.overrides import normalise_words
from slurm_rl.errors import ConfigError
from slurm_rl.launch.sweep import sweeper as composed
from slurm_rl.launch.sweep.sweeper import Composer

SWEEPS = {
    "plain values": ["seed=1 optim.lr=1e-4", "seed=2 optim.lr=1", "seed=2 optim.lr=3e-5", "seed=7 optim.lr='1e-4'"],
    "words": ["name=a", "name='b-c'", "name=null", "name=true", r"name=a\,b"],
    "null and back": ["eval.interval=null", "eval.interval=2", "eval.interval=null"],
    "lists and tables": ["data.info_keys=[a]", "data.info_keys=[b,c]", "data.info_keys=[]"],
    "a key that others name": ["algorithm=dr_grpo rollout.max_tokens=9", "algorithm=dr_grpo rollout.max_tokens=17"],
    "a section that others name": ["data=gsm8k data.root=/a", "data=gsm8k data.root=/b seed=1"],
    "values that name others": ["name=${seed} seed=1", "name=${seed} seed=2", "name=x seed=2", "name=y seed=3"],
    "groups": ["algorithm=dapo seed=1", "algorithm=gspo seed=1", "algorithm=dapo seed=2"],
    "added keys": ["+cluster.env.A=1 seed=1", "+cluster.env.A=2 seed=1", "++cluster.env.A=2", "++cluster.env.B=null"],
    "twice": ["seed=1 seed=2", "seed=3 seed=4", "seed=4 seed=3"],
    "gone": ["~cluster.env seed=1", "~cluster.env seed=2"],
    "quotes": ["name='a\\'b'", 'name="${seed}" seed=5', 'name="${seed}" seed=6', "name=???", "name=a"],
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_sweep_configs_equal_hydra(sweep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_rl.config.load.hydra_compose", composed.hydra_compose)
    runs = [normalise_words(["+exp=demo", *words.split()]) for words in SWEEPS[sweep]]
    expected = [_of(compose, words) for words in runs]
    for step in (1, -1):
        with open_hydra(None) as extra:
            composer = Composer(extra)
            assert [_of(composer.compose, words) for words in runs[::step]] == expected[::step]


def _of(compose_words: Callable[[list[str]], object], words: list[str]) -> str:
    """Return the tree with its types, or the error."""
    try:
        return repr(compose_words(words))
    except ConfigError as error:
        return str(error)


def test_plain_values_share_one_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def resolve(config: object) -> dict[str, int]:
        seen.append(config)
        return {"seed": 9}

    monkeypatch.setattr("slurm_rl.launch.sweep.sweeper.resolve_tree", resolve)
    with open_hydra(None) as extra:
        composer = Composer(extra)
        assert [composer.compose(["exp=demo", f"seed={seed}"])["seed"] for seed in range(5)] == [9, 1, 2, 3, 4]
    assert len(seen) == 1
