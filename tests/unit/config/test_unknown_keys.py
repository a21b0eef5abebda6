"""What is said of a key that cannot be set."""

from __future__ import annotations

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError

SOURCE = ("+exp=demo", "data.train=''", "+data.sources.sums.train=addition")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optim.lrr=1"], "did you mean optim.lr?"),
        (["cluster.env.FOO=1"], "add an entry: +cluster.env.FOO=<value>"),
        (["cluster.env={FOO:1}"], "add an entry: +cluster.env.<name>=<value>"),
        (["model=hf", "model.path=/m", "model.tiny.num_heads=2"], "model.tiny is null with these groups"),
        (["exp=command", "external.argv=[a]", "external.model=m"], "where it has, write +external.model=<value>"),
        ([*SOURCE, "data.sources.sums.env.timeout_s=9"], "write +data.sources.sums.env.timeout_s=<value>"),
        ([*SOURCE, "+data.sources.sums.env.timout_s=9"], "did you mean"),
        (["model.lora.rank=3"], "choose a group that has model.lora"),
    ],
)
def test_the_next_action_fits_the_key(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    assert says in str(caught.value)
