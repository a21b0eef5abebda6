"""The command line. An old Python is refused here, before the import of a module that it cannot parse."""

import sys

from slurm_rl.cli.install_hint import render_hint

if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write("slurm_rl: Python 3.11, 3.12 or 3.13 is needed" + render_hint() + "\n")
    raise SystemExit(2)
