"""The killed game with an external program as the player."""

import shutil
from pathlib import Path

from tests.examples.kit import EXAMPLES, LOCAL_OVERRIDES
from tests.killed_game.game import SIZES, Game

_SMALL = ("trainer.prompts_per_step=8", "algorithm.group_size=4")
_PROGRAM = ("env.agent_concurrency=2", "env.agent_rows_per_process=8", "env.agent_timeout_s=900", "rollout.dump=true")


class ProgramGame(Game):
    """A game with `held_agent.py` instead of an environment; the traces are the same."""

    def __init__(self, folder: Path, *words: str) -> None:
        super().__init__(folder)
        agent = shutil.copy(Path(__file__).with_name("held_agent.py"), folder)
        shipped = ("--config-dir", str(EXAMPLES / "openai_program"), "+exp=openai_program_tiny")
        own = (f"env.agent_command=[python,{agent}]", f"run_dir={self.run.path}")
        self.words = (*shipped, *LOCAL_OVERRIDES, *SIZES["guessing_game"], *_SMALL, *_PROGRAM, *own, *words)
