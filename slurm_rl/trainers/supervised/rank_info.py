"""Rank of this process, from torchrun's variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.errors import ConfigError

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """A data-parallel rank."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    """0: any free port, for a single process."""

    def join(self, timeout_s: float) -> None:
        """Select this rank's GPU and join the process group.

        Raises:
            BringUpError: the other ranks did not join in time.
        """
        import torch

        from slurm_rl.models.distributed import init_process_group

        if torch.cuda.is_available():
            # An agent may show each rank only its own GPU.
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        init_process_group(self.rank, self.world_size, self.master_address, self.master_port, timeout_s)


def read_rank_info(environment: Mapping[str, str] | None = None) -> RankInfo:
    """Return the rank that torchrun set; without torchrun, the only one.

    >>> read_rank_info({})
    RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1, master_address='127.0.0.1', master_port=0)

    Raises:
        ConfigError: some variables are missing or invalid.
    """
    env = os.environ if environment is None else environment
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return RankInfo()
    missing = [name for name in _NAMES if not env.get(name)]
    if missing:
        raise ConfigError(
            f"a rank needs {', '.join(_NAMES)}", seen=f"no {', '.join(missing)}", action="start it with torchrun"
        )
    try:
        return RankInfo(
            rank=int(env["RANK"]),
            local_rank=int(env["LOCAL_RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            local_world_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
            master_address=env["MASTER_ADDR"],
            master_port=int(env["MASTER_PORT"]),
        )
    except ValueError as error:
        raise ConfigError(
            "RANK, LOCAL_RANK, WORLD_SIZE and MASTER_PORT must be numbers", seen=str(error), action="use torchrun"
        ) from None
