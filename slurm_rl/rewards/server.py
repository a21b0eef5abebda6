"""Serve rewards outside of a run: `python -m slurm_rl.rewards.server --help`.

The flags are in slurm_rl/cli/reward_server.py, a higher layer, so the import is by name.
"""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("slurm_rl.cli.reward_server").main())
