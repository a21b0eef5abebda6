"""Outputs of sinfo and scontrol from public user guides and from the test Slurm."""

from collections.abc import Sequence

from slurm_rl.errors import SubmitError
from slurm_rl.launch.slurm.command_line import SlurmUnavailableError

# Two kinds of H100 nodes, one node drained, another one down; a type in capitals, sockets after the count.
H100_SINFO = """\
debug|up|1:00:00|2|104|1900000|gpu:H100:8(S:0-1)|idle|h100,ib
long*|up|2-00:00:00|10|104|1900000|gpu:H100:8(S:0-1)|mixed|h100,ib
long*|up|2-00:00:00|1|104|1900000|gpu:H100:8(S:0-1)|drained|h100,ib
long*|up|2-00:00:00|1|104|1900000|gpu:H100:8(S:0-1)|down*|h100,ib
cpu|up|infinite|40|128|256000|(null)|idle~|milan
"""
AMD_SINFO = """\
mi300*|up|1-00:00:00|16|192|2300000|gpu:amd_instinct_mi300x_oam:8|idle|(null)
mi250|up|1-00:00:00|4|128|1000000|gpu:MI250:8(S:0-3)|idle|(null)
"""
UNTYPED_SINFO = "main*|up|infinite|3|64|500000|gpu:8|idle|(null)\n"
TEST_SINFO = """\
main*|up|infinite|1|4|12000|gpu:fake:2|drained|old
main*|up|infinite|3|4|12000|gpu:fake:2|idle|old
high|up|infinite|4|4|12000|gpu:fake:2|idle|new
"""
CPU_SINFO = "batch*|up|12:00:00|20|32|128000|(null)|idle|(null)\n"
SETTINGS = "Configuration data as of 2026-11-23T08:00:00\nClusterName             = alpha\nTmpFS   = /local\n"


class Site:
    """A login node that answers known commands; unknown commands fail."""

    def __init__(self, sinfo: str = H100_SINFO, *, silent: Sequence[str] = ()) -> None:
        self.answers = {
            "sinfo -h": sinfo,
            "scontrol show config": SETTINGS,
            "srun --help": "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH",
        }
        self.silent = silent
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> str:
        words = " ".join(argv)
        self.asked.append(words)
        if any(words.startswith(start) for start in self.silent):
            raise SlurmUnavailableError(f"{argv[0]} must answer within 60 s")
        found = next((text for start, text in self.answers.items() if words.startswith(start)), None)
        if found is None:
            raise SubmitError(f"Slurm must accept {argv[0]}", seen="Slurm accounting storage is disabled")
        return found
