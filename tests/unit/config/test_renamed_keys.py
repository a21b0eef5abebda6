"""Old names of keys are refused with the new ones."""

from __future__ import annotations

import pytest

from slurm_rl.config.keys import list_keys
from slurm_rl.config.load import load_config
from slurm_rl.config.parse import parse_config
from slurm_rl.config.renamed import RENAMED
from slurm_rl.errors import ConfigError


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_renamed_key_is_refused_with_the_new_name(old: str, new: str) -> None:
    assert new in list_keys() and old not in list_keys()
    with pytest.raises(ConfigError, match=f"{old} has a new name, {new}.*Next: write {new}"):
        load_config(["+exp=demo", f"{old}=1"])


def test_renamed_key_of_a_source_is_refused_with_the_new_name() -> None:
    words = ["+exp=demo", "data.train=''", "+data.sources.a.train=addition", "+data.sources.a.env.order=free"]
    with pytest.raises(ConfigError, match=r"write data\.sources\.a\.env\.schedule"):
        load_config(words)


def test_renamed_key_in_a_saved_config_is_refused_with_the_new_name() -> None:
    tree = load_config(["+exp=demo"]).model_dump(mode="json")
    tree["checkpoint"]["every"] = tree["checkpoint"].pop("interval")
    with pytest.raises(ConfigError, match=r"checkpoint\.every has a new name, checkpoint\.interval"):
        parse_config(tree)
