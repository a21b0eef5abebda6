"""Rules that span sections: a function each, from a whole config to what is wrong with it; RULES is all of them."""

from slurm_rl.config.rules.kinds import kind_problems
from slurm_rl.config.rules.machines import machine_problems
from slurm_rl.config.rules.sampling import sampling_problems, transfer_problems
from slurm_rl.config.rules.slurm import slurm_problems
from slurm_rl.config.rules.task import critic_problems, task_problems
from slurm_rl.config.sources import source_problems

RULES = (
    task_problems,
    critic_problems,
    sampling_problems,
    source_problems,
    kind_problems,
    machine_problems,
    transfer_problems,
    slurm_problems,
)
