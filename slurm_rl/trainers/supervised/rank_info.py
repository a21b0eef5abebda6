"""Which rank this process is, from the variables that torchrun sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_rl.errors import ConfigError

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """One rank; every rank is a data-parallel one."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = 0
    """0: any free one, for a single process."""

    def join(self, timeout_s: float) -> None:
        """Take this rank's GPU, if there are any, and join the process group.

        Raises:
            BringUpError: the others did not come in time.
        """
        import torch

        from slurm_rl.models.distributed import init_process_group

        if torch.cuda.is_available():
            # An agent may let each rank see its own GPU alone.
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        init_process_group(self.rank, self.world_size, self.master_address, self.master_port, timeout_s)


def read_rank_info(environment: Mapping[str, str] | None = None) -> RankInfo:
    """The rank torchrun gave this process; without torchrun, the only one.

    >>> read_rank_info({})
    RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1, master_address='127.0.0.1', master_port=0)

    Raises:
        ConfigError: some of the variables are missing, or are no numbers.
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
