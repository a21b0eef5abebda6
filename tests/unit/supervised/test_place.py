"""Where a rank finds itself."""

from __future__ import annotations

import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.supervised.place import Place, find_place

RANKS = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"}


def test_a_rank_of_torchrun_is_where_its_variables_say() -> None:
    place = find_place({**RANKS, "LOCAL_WORLD_SIZE": "4"})
    assert (place.rank, place.local_rank, place.world_size, place.local_world_size) == (5, 1, 8, 4)
    assert (place.master_address, place.master_port) == ("10.0.0.1", 4242)


def test_without_torchrun_there_is_one_rank() -> None:
    assert find_place({}) == Place()


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"got no MASTER_PORT.*torchrun"):
        find_place({name: value for name, value in RANKS.items() if name != "MASTER_PORT"})


def test_a_variable_that_is_no_number_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"must be numbers.*'x'"):
        find_place({**RANKS, "RANK": "x"})
