import pytest

from slurm_rl.errors import ConfigError
from slurm_rl.trainers.supervised.rank_info import RankInfo, read_rank_info

RANKS = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"}


def test_torchrun_rank_follows_variables() -> None:
    rank_info = read_rank_info({**RANKS, "LOCAL_WORLD_SIZE": "4"})
    assert (rank_info.rank, rank_info.local_rank, rank_info.world_size, rank_info.local_world_size) == (5, 1, 8, 4)
    assert (rank_info.master_address, rank_info.master_port) == ("10.0.0.1", 4242)


def test_missing_torchrun_means_one_rank() -> None:
    assert read_rank_info({}) == RankInfo()


def test_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"got no MASTER_PORT.*torchrun"):
        read_rank_info({name: value for name, value in RANKS.items() if name != "MASTER_PORT"})


def test_non_number_variable_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"must be numbers.*'x'"):
        read_rank_info({**RANKS, "RANK": "x"})
