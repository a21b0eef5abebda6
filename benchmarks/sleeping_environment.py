"""An environment that answers after 0.1 to 5 s, for benchmarks.many_episodes."""

import asyncio
import random

from slurm_rl.envs.environment import Environment, Reply, Row, Step

SPEED = 1.0


class Sleeping(Environment):
    def reset(self, row: Row, seed: int) -> None:
        self.random = random.Random(f"{seed} {row.index}")
        self.left = self.random.randint(2, 6)

    async def step(self, reply: Reply) -> Step:
        await asyncio.sleep(self.random.uniform(0.1, 5.0) / SPEED)
        self.left -= 1
        return Step("It is something else.", 1.0 if self.left == 0 else None, self.left == 0)
