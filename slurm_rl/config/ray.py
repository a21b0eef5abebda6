"""The Ray cluster that a run brings up for itself."""

from __future__ import annotations

from slurm_rl.config.base import PositiveFloat, Section


class RayConfig(Section):
    """Sizes and the dashboard."""

    object_store_gb: PositiveFloat = 2.0
    """Shared memory for objects on each node; a weight sync passes the whole model through it."""
    dashboard: bool = True
    """Serve Ray's dashboard on the head's loopback address, and `ray job` with it; false saves 2 s of bring-up."""
